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

/// Note [What forward holds]. LibTorch offers hooks for saved tensors only in Python programs. But each of its
/// allocators, on the CPU and on accelerators, reports every allocation and every free to the profiler of the calling
/// thread, and autograd's threads inherit this profiler from the thread that called backward. An object of this class
/// takes the profiler's place. It counts each block from its allocation until it is freed, if the block was allocated
/// outside of a backward, or inside a backward while autograd records a graph, because an activation checkpoint then
/// recomputes forward. It does not count blocks that the library allocates for itself, since other byte classes do.
class ForwardBlocks : public torch::profiler::impl::ProfilerStateBase {
 public:
  explicit ForwardBlocks(const std::shared_ptr<runtime::RankState>& rank)
      : ProfilerStateBase(torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::Disabled)),
        rank_(rank),
        nobodys_(std::make_shared<memory::ByteAccount>(rank->account)) {
    const MutexLock lock(rank->mutex);
    for (const auto* group : rank->groups()) accounts_[group->id()] = group->account();
  }

  torch::profiler::impl::ActiveProfilerType profilerType() override {
    return torch::profiler::impl::ActiveProfilerType::NONE;
  }
  bool memoryProfilingEnabled() const override { return true; }
  /// LibTorch calls this function on any thread. It must neither take the rank's lock nor allocate through LibTorch.
  void reportMemoryUsage(void* block, int64_t bytes, size_t /*all*/, size_t /*reserved*/,
                         c10::Device /*device*/) override {
    const MutexLock lock(mutex_);
    if (!is_open_) return;
    // Allocations erase too, because a thread without this profiler may have freed a block at the same address.
    blocks_.erase(block);
    if (bytes > 0 && !memory::allocates_for_library() && is_forward())
      blocks_.emplace(block, memory::Charge(account(), memory::ByteClass::kForward, bytes));
  }
  /// Ends the recording. Autograd graphs may keep this object alive for longer.
  void close() {
    const MutexLock lock(mutex_);
    is_open_ = false;
    blocks_.clear();
  }

 private:
  // Returns the account of the group that was read last in the current scope or backward, or `nobodys_`.
  const Account& account() const {
    const auto read_last = accounts_.find(rank_->reads.current);
    return read_last == accounts_.end() ? nobodys_ : read_last->second;
  }

  const std::shared_ptr<runtime::RankState> rank_;
  const Account nobodys_;                                   // counts blocks that belong to no group
  std::unordered_map<runtime::GroupId, Account> accounts_;  // accounts of groups that existed at the start
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
