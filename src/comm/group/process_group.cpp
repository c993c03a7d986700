#include <fsdp/process_group.h>

#include "comm/core/check.h"
#include "comm/failure/roll_call.h"
#include "comm/group/backend_choice.h"
#include "comm/group/join.h"
#include "comm/rendezvous/store_connection.h"

#include <cstdlib>
#include <mutex>

namespace fsdp {
namespace {

struct Default {
  std::mutex mutex;
  std::shared_ptr<ProcessGroup> group;
};

// Never destroyed; see leave_at_exit.
Default& process_wide() {
  static auto* instance = new Default;
  return *instance;
}

thread_local std::shared_ptr<ProcessGroup> t_group;

// A program that ends without destroy_process_group() still leaves, and ends the threads that talk to the store while
// LibTorch's own state is there.
void leave_at_exit() {
  destroy_process_group();
  RollCall::leave_all();
  close_stores();
}

}  // namespace

ProcessGroup::ProcessGroup(std::shared_ptr<Communicator> communicator, int local_rank)
    : communicator_(std::move(communicator)),
      reductions_(communicator_->duplicate("reductions")),
      local_rank_(local_rank) {}

std::shared_ptr<ProcessGroup> new_process_group(ProcessGroupOptions options) {
  const Membership membership = resolve_membership(options);
  if (membership.device_backend) make_current(membership.device_backend->device);
  auto store = options.store;
  if (!store && membership.world_size() > 1) {
    store = connect_store(membership.rendezvous, options.timeout);
  }
  static const bool leaves_at_exit = std::atexit(leave_at_exit) == 0;
  TORCH_INTERNAL_ASSERT(leaves_at_exit);
  const bool store_in_rank_0 = !options.store && !membership.rendezvous.agent_hosts_store;
  return std::make_shared<ProcessGroup>(join(membership, store, options.timeout, store_in_rank_0),
                                        membership.rendezvous.local_rank);
}

void init_process_group(ProcessGroupOptions options) {
  constexpr std::string_view kTwice =
      "[fsdp] init_process_group: the process group is there already. Call "
      "destroy_process_group() first.";
  auto& [mutex, current] = process_wide();
  {
    std::lock_guard lock(mutex);
    require(current == nullptr, kTwice);
  }
  auto group = new_process_group(std::move(options));
  std::lock_guard lock(mutex);
  require(current == nullptr, kTwice);
  current = std::move(group);
}

void destroy_process_group() {
  std::shared_ptr<ProcessGroup> group;
  std::lock_guard lock(process_wide().mutex);
  group.swap(process_wide().group);
}

std::shared_ptr<ProcessGroup> default_process_group() {
  if (t_group) return t_group;
  std::lock_guard lock(process_wide().mutex);
  require(process_wide().group != nullptr, "[fsdp] there is no process group: call fsdp::init_process_group() first.");
  return process_wide().group;
}

ThreadProcessGroupGuard::ThreadProcessGroupGuard(std::shared_ptr<ProcessGroup> group)
    : previous_(std::exchange(t_group, std::move(group))) {}

ThreadProcessGroupGuard::~ThreadProcessGroupGuard() { t_group = std::move(previous_); }

int rank() { return default_process_group()->rank(); }
int world_size() { return default_process_group()->world_size(); }
int local_rank() { return default_process_group()->local_rank(); }
void barrier() { default_process_group()->communicator().barrier({})->wait(); }

}  // namespace fsdp
