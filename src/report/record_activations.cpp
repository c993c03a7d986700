#include <ATen/core/grad_mode.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <fsdp/memory_report.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <unordered_map>
#include <utility>

#include "api/group_view.h"
#include "comm/core/mutex.h"
#include "memory/block.h"
#include "runtime/param_group.h"

namespace fsdp {
namespace report {

using Account = std::shared_ptr<memory::ByteAccount>;

bool is_forward() { return torch::autograd::get_current_graph_task_id() == -1 || at::GradMode::is_enabled(); }

/// Note [What forward holds]. LibTorch has hooks for saved tensors only where there is Python. But each of its
/// allocators, on the CPU and on accelerators, reports what it gives and takes back to the profiler of the calling
/// thread, and autograd's threads inherit that profiler from the thread that called backward. So this object, in a
/// profiler's place, knows what forward holds: each block that was allocated outside of a backward, or in one while
/// autograd records, which is when a checkpoint runs forward again, and that has not been given back. Blocks that the
/// library allocates for itself are on its account already.
class ForwardBlocks : public torch::profiler::impl::ProfilerStateBase {
 public:
  explicit ForwardBlocks(const std::shared_ptr<runtime::RankState>& rank)
      : ProfilerStateBase(torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::Disabled)),
        rank_(rank),
        nobodys_(std::make_shared<memory::ByteAccount>(rank->shared_account())) {
    const MutexLock lock(rank->mutex);
    for (const auto* group : rank->groups()) accounts_[group->id()] = group->account();
  }

  torch::profiler::impl::ActiveProfilerType profilerType() override {
    return torch::profiler::impl::ActiveProfilerType::NONE;
  }
  bool memoryProfilingEnabled() const override { return true; }
  /// On any thread; must neither take the rank's lock nor allocate by LibTorch.
  void reportMemoryUsage(void* block, int64_t bytes, size_t /*all*/, size_t /*reserved*/,
                         c10::Device /*device*/) override {
    const MutexLock lock(mutex_);
    if (!is_open_) return;
    blocks_.erase(block);  // also one that a thread without this profiler gave back: its address comes again
    if (bytes > 0 && !memory::allocates_for_library() && is_forward())
      blocks_.emplace(block, memory::Charge(account(), memory::ByteClass::kForward, bytes));
  }
  /// Graphs may hold this object for longer than the recording lasts.
  void close() {
    const MutexLock lock(mutex_);
    is_open_ = false;
    blocks_.clear();
  }

 private:
  // The account of the group whose parameters were read last in the current scope or backward.
  const Account& account() const {
    const auto read_last = accounts_.find(rank_->reads.current);
    return read_last == accounts_.end() ? nobodys_ : read_last->second;
  }

  const std::shared_ptr<runtime::RankState> rank_;
  const Account nobodys_;
  std::unordered_map<runtime::GroupId, Account> accounts_;  // of the groups that existed when recording began
  Mutex mutex_;
  bool is_open_ FSDP_GUARDED_BY(mutex_) = true;
  std::unordered_map<void*, memory::Charge> blocks_ FSDP_GUARDED_BY(mutex_);
};

}  // namespace report

struct RecordActivations::State {
  std::shared_ptr<report::ForwardBlocks> blocks;
  c10::DebugInfoGuard guard{c10::DebugInfoKind::PROFILER_STATE, blocks};
};

RecordActivations::RecordActivations(const Group& model)
    : state_(new State{
          std::make_shared<report::ForwardBlocks>(param_groups(model).front()->shared_rank_state())}) {}

RecordActivations::~RecordActivations() { state_->blocks->close(); }

}  // namespace fsdp
