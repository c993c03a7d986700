#include <fsdp/process_group.h>

#include "comm/core/check.h"
#include "comm/core/mutex.h"
#include "comm/core/timeline.h"
#include "comm/failure/roll_call.h"
#include "comm/group/attachment.h"
#include "comm/group/join.h"
#include "comm/group/membership.h"
#include "comm/posix/descriptor.h"
#include "comm/rendezvous/store.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <optional>
#include <set>

namespace fsdp {
namespace {

struct Default {
  Mutex mutex;
  std::shared_ptr<ProcessGroup> group FSDP_GUARDED_BY(mutex);
  pid_t has_group FSDP_GUARDED_BY(mutex) = 0;  // the process that made it; a forked child may make another group
  std::atomic<pid_t> leaves_at_exit{0};
};

// The object is never destroyed; see leave_at_exit.
Default& process_wide() {
  static auto* instance = new Default;
  return *instance;
}

thread_local std::shared_ptr<ProcessGroup> t_group;

// Leaves the group when a program ends without destroy_process_group(), and ends the threads that use the store before
// LibTorch's own state is destroyed. A forked child leaves nothing; see make_group.
void leave_at_exit() {
  if (process_wide().leaves_at_exit != getpid()) return;
  destroy_process_group();
  Alarm::leave_all();
  close_stores();
}

// A forked child never destroys a group, however it exits: it lacks its parent's threads, shares its parent's
// connections, and may find locks that stay locked for ever.
std::shared_ptr<ProcessGroup> make_group(std::shared_ptr<Communicator> communicator, int local_rank) {
  static auto* left_alone = new std::vector<ProcessGroup*>;  // keeps the groups reachable, so they are not leaks
  const auto let_go = [process = getpid()](ProcessGroup* group) {
    if (getpid() == process)
      delete group;
    else
      left_alone->push_back(group);
  };
  return {new ProcessGroup(std::move(communicator), local_rank), let_go};
}

}  // namespace

ProcessGroup::ProcessGroup(std::shared_ptr<Communicator> communicator, int local_rank)
    : communicator_(std::move(communicator)),
      reductions_(communicator_->duplicate("reductions")),
      local_rank_(local_rank) {
  for (int number = 0; number < world_size(); ++number) global_ranks_.push_back(number);
  hosts_ = global_ranks_;
}

std::shared_ptr<ProcessGroup> join_as_group(const Rendezvous& place) {
  Rendezvous rendezvous = place;
  if (!rendezvous.membership.ranks.timeline) rendezvous.membership.ranks.timeline = std::make_shared<Timeline>();
  auto group = make_group(join(rendezvous), rendezvous.membership.parameters.local_rank);
  const auto& ranks = rendezvous.membership.ranks;
  group->name_ = ranks.group;
  if (!ranks.global.empty()) group->global_ranks_ = ranks.global;
  if (group->world_size() > 1) group->hosts_ = unpack_numbers(rendezvous.roster->hosts);
  group->rendezvous_ = std::make_shared<const Rendezvous>(std::move(rendezvous));
  return group;
}

std::shared_ptr<Communicator> Attachment::queue_for(ProcessGroup& group, const std::shared_ptr<ProcessGroup>& user,
                                                    const std::string& name) {
  auto& queue = all_of(group).queues[user];
  if (!queue) queue = group.reductions().duplicate(name);
  return queue;
}

std::shared_ptr<ProcessGroup> group_of_one(const ProcessGroup& all, const std::string& name) {
  const Ranks ranks = Attachment::ranks_of(all);
  Rendezvous rendezvous;
  rendezvous.membership.ranks = ranks.in_subgroup(name, {ranks.name()});
  rendezvous.membership.parameters.local_rank = all.local_rank();
  return join_as_group(rendezvous);
}

Ranks Attachment::ranks_of(const ProcessGroup& group) {
  return group.rendezvous_ ? group.rendezvous_->membership.ranks : Ranks{group.rank(), group.world_size()};
}

std::shared_ptr<TrafficCount> Attachment::traffic_of(const ProcessGroup& group) {
  return group.rendezvous_ ? group.rendezvous_->traffic : nullptr;
}

Traffic ProcessGroup::traffic() const { return rendezvous_ ? rendezvous_->traffic->total() : Traffic{}; }

c10::Device ProcessGroup::device() const {
  const bool has_own = rendezvous_ && rendezvous_->membership.device_backend;
  return has_own ? rendezvous_->membership.device_backend->device : c10::Device(c10::kCPU);
}

std::string ProcessGroup::where(const std::string& operation) const {
  return Attachment::ranks_of(*this).where(operation);
}

std::shared_ptr<ProcessGroup> ProcessGroup::split(std::vector<std::vector<int>> groups, const std::string& name) const {
  const std::string prefix = where("split");
  require(rendezvous_ != nullptr, prefix,
          "a process group over a user-defined communicator cannot be split. Split one that fsdp::init_process_group "
          "made.");
  std::set<int> taken;
  std::string wanted;
  std::vector<int> own;
  const int global_rank = global_ranks_[static_cast<size_t>(rank())];
  for (auto& group : groups) {
    std::ranges::sort(group);
    for (const int member : group) {
      if (!std::ranges::binary_search(global_ranks_, member))  // require() would build the long list for every member
        throw UsageError(str_cat(prefix, "expected global ranks of this group, which are ",
                                 str_join(", ", global_ranks_), ", found ", member, "."));
      require(taken.insert(member).second, prefix, "expected each rank in at most one subgroup, found rank ", member,
              " in two.");
    }
    wanted += str_cat(" {", str_join(", ", group), "}");
    if (std::ranges::binary_search(group, global_rank)) own = group;
  }
  // Makes the host page (shm::HostPage) before the barrier, so that other ranks find it afterwards.
  std::optional<Rendezvous> rendezvous;
  try {
    if (!own.empty()) rendezvous = subgroup_of(*rendezvous_, name, own);
  } catch (const shm::Obstacle& obstacle) {
    communicator_->fail(str_cat("split into '", name, "'"), str_cat(obstacle.what(), '.'));
  }
  ++rendezvous_->splits;  // even if the barrier fails, so that all ranks have the same count
  communicator_->barrier({str_cat("split into '", name, "':", wanted), {}})->wait();
  return rendezvous ? join_as_group(*rendezvous) : nullptr;
}

std::shared_ptr<ProcessGroup> new_process_group(ProcessGroupOptions options) {
  open_standard_streams();
  const Membership membership = resolve_membership(options);
  if (membership.device_backend) make_current(membership.device_backend->device);
  auto store = options.store;
  if (!store && membership.world_size() > 1) {
    store = connect_store(membership.parameters, options.timeout);
  }
  if (process_wide().leaves_at_exit.exchange(getpid()) == 0)  // a forked child has its parent's handler
    TORCH_INTERNAL_ASSERT(std::atexit(leave_at_exit) == 0);
  const bool store_in_rank_0 = !options.store && !membership.parameters.agent_hosts_store;
  return join_as_group({membership, store, options.timeout, store_in_rank_0});
}

void init_process_group(ProcessGroupOptions options) {
  auto& current = process_wide();
  {
    const MutexLock lock(current.mutex);
    require(current.group == nullptr || current.has_group != getpid(),
            "[fsdp] init_process_group: the process group already exists. Call destroy_process_group() first.");
  }
  auto group = new_process_group(std::move(options));
  const MutexLock lock(current.mutex);
  current.group = std::move(group);
  current.has_group = getpid();
}

void destroy_process_group() {
  std::shared_ptr<ProcessGroup> group;
  auto& current = process_wide();
  const MutexLock lock(current.mutex);
  group.swap(current.group);
}

std::shared_ptr<ProcessGroup> default_process_group() {
  if (t_group) return t_group;
  auto& current = process_wide();
  const MutexLock lock(current.mutex);
  require(current.group != nullptr, "[fsdp] there is no process group: call fsdp::init_process_group() first.");
  return current.group;
}

ThreadProcessGroupGuard::ThreadProcessGroupGuard(std::shared_ptr<ProcessGroup> group)
    : previous_(std::exchange(t_group, std::move(group))) {}

ThreadProcessGroupGuard::~ThreadProcessGroupGuard() { t_group = std::move(previous_); }

int rank() { return default_process_group()->rank(); }
int world_size() { return default_process_group()->world_size(); }
Traffic traffic() { return default_process_group()->traffic(); }
int local_rank() { return default_process_group()->local_rank(); }
void barrier() { default_process_group()->communicator().barrier({})->wait(); }

}  // namespace fsdp
