#include "memory/allocation_watch.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <unordered_map>
#include <utility>

#include "comm/core/mutex.h"
#include "memory/block.h"

namespace fsdp::memory {
namespace {

using torch::profiler::impl::ActiveProfilerType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;
using torch::profiler::impl::ProfilerStateBase;

thread_local bool allocates_for_library = false;

bool is_forward() { return torch::autograd::get_current_graph_task_id() == -1 || at::GradMode::is_enabled(); }

}  // namespace

// LibTorch takes whatever is in the profiler's place for this base class.
class AllocationWatch::Blocks : public ProfilerStateBase {
 public:
  explicit Blocks(Account account)
      : ProfilerStateBase(ProfilerConfig(ProfilerState::Disabled)), account_(std::move(account)) {}

  ActiveProfilerType profilerType() override { return ActiveProfilerType::NONE; }
  bool memoryProfilingEnabled() const override { return true; }
  void reportMemoryUsage(void* block, int64_t bytes, size_t /*all*/, size_t /*reserved*/,
                         c10::Device /*device*/) override {
    const MutexLock lock(mutex_);
    if (!is_open_) return;
    blocks_.erase(block);  // also what another thread gave back, whose address comes again
    if (bytes > 0 && !allocates_for_library && is_forward())
      blocks_.emplace(block, Charge(account_(), ByteClass::kForward, bytes));
  }
  /// Graphs may hold this for longer than the watch lives.
  void close() {
    const MutexLock lock(mutex_);
    is_open_ = false;
    blocks_.clear();
  }

 private:
  const Account account_;
  Mutex mutex_;
  bool is_open_ FSDP_GUARDED_BY(mutex_) = true;
  std::unordered_map<void*, Charge> blocks_ FSDP_GUARDED_BY(mutex_);
};

AllocationWatch::AllocationWatch(Account account)
    : blocks_(std::make_shared<Blocks>(std::move(account))), guard_(c10::DebugInfoKind::PROFILER_STATE, blocks_) {}

AllocationWatch::~AllocationWatch() { blocks_->close(); }

c10::DataPtr allocate(c10::Device device, size_t bytes) {
  const c10::DeviceGuard guard(device);
  allocates_for_library = true;
  const auto is_over = c10::make_scope_exit([] { allocates_for_library = false; });
  return c10::GetAllocator(device.type())->allocate(bytes);
}

}  // namespace fsdp::memory
