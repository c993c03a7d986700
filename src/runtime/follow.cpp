#include "runtime/follow.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/core/check.h"
#include "runtime/backward.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"
#include "runtime/scope.h"

namespace fsdp::runtime {
namespace {

bool expects_nothing(const ParamSlot&) { return false; }

// Graph tasks of other ranks have numbers that none of this rank's has, nor -1.
int number_of_task(int64_t told) { return static_cast<int>(-2 - told); }

class Follower {
 public:
  Follower(const ParamGroup& own, const std::function<void(GroupId)>& broadcast_buffers)
      : rank_(own.rank_state()), where_(own.where("join")), broadcast_buffers_(broadcast_buffers) {}
  ~Follower() {
    while (!scopes_.empty()) scopes_.pop_back();
  }
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  void act(const Event& event) {
    if (event.act == Act::kOpenScope) return open_scope(/*records=*/event.first != 0);
    if (event.act == Act::kCloseScope) return close_scope(/*recorded=*/event.first != 0);
    if (event.act == Act::kLeaveBackward) return leave_backward(event.first);
    if (event.act == Act::kBroadcastBuffers) return broadcast_buffers_(static_cast<GroupId>(event.first));
    const OwnOperators own_operators;
    act_on(find(event.first), event);
  }

 private:
  std::shared_ptr<ParamGroup> find(int64_t id) const {
    auto* group = rank_.group(static_cast<GroupId>(id));
    auto found = group != nullptr ? group->weak_from_this().lock() : nullptr;
    if (!found)
      throw Mismatch(where_ +
                     "this rank has no data and takes part in another one's step, which uses a group that is "
                     "not there on this rank, number " +
                     std::to_string(id) + ". Shard the same models in the same order on every rank");
    return found;
  }

  void act_on(const std::shared_ptr<ParamGroup>& group, const Event& event) {
    auto& residency = group->residency();
    switch (event.act) {
      case Act::kName:
        return named_.push_back(group);
      case Act::kGather:
        return residency.start_gather();
      case Act::kFinishGather:
        return residency.finish_gather();
      case Act::kFree:
        return residency.free_whole();
      case Act::kReshardWithin:
        return residency.reshard_within();
      case Act::kEnterBackward:
        return enter_backward(*group, event.second);
      case Act::kReduce:
      case Act::kReduceWithinReplica:
        group->policy.reduction.all_reduces = event.act == Act::kReduce;
        return start_reduction(*group, static_cast<size_t>(event.second));
      case Act::kFinishReductions:
        group->policy.is_last_backward = event.second != 0;
        rank_.backwards.forget_reducing(group->id());
        return finish_reductions(*group);
      default:
        TORCH_INTERNAL_ASSERT(false, "an act that is none of a group: ", static_cast<int>(event.act));
    }
  }

  void open_scope(bool records) {
    const at::AutoGradMode mode(records);
    scopes_.push_back(std::make_unique<OpenScope>(std::exchange(named_, {})));
  }

  void close_scope(bool recorded) {
    if (recorded) scopes_.back()->note_recorded();
    scopes_.pop_back();
  }

  void enter_backward(ParamGroup& group, int64_t told) {
    const int id = number_of_task(told);
    auto task = rank_.backwards.find(id);
    if (!task) task = rank_.backwards.open({.id = id, .runs = running_, .thread = std::this_thread::get_id()});
    enter_task(group, *task, expects_nothing);
  }

  void leave_backward(int64_t told) {
    const OwnOperators own_operators;
    if (const auto task = rank_.backwards.find(number_of_task(told))) close_task(rank_, *task);
  }

  RankState& rank_;
  const std::string where_;
  const std::function<void(GroupId)>& broadcast_buffers_;
  Groups named_;
  std::vector<std::unique_ptr<OpenScope>> scopes_;
  const std::shared_ptr<void> running_ =
      std::make_shared<char>();  // backwards that are open when it goes are unfinished
};

}  // namespace

void follow(ParamGroup& own, Communicator& communicator, int leader, const std::string& subject,
            const std::function<void(GroupId)>& broadcast_buffers) {
  auto& rank = own.rank_state();
  std::lock_guard lock(rank.mutex);
  rank.follows = true;
  const auto follows_no_more = c10::make_scope_exit([&] { rank.follows = false; });
  Follower follower(own, broadcast_buffers);
  while (true) {
    const auto event = hear(communicator, leader, subject, [&](Work& work) { rank.wait(work); });
    if (event.act == Act::kEnd) return;
    if (event.act == Act::kFail)
      throw Mismatch(own.where("join") + "this rank has no data and takes part in the step of rank " +
                     std::to_string(own.placement().process_group().global_ranks()[static_cast<size_t>(leader)]) +
                     ", which an exception ended. Call reset_iter_state() on the model on every rank");
    follower.act(event);
  }
}

}  // namespace fsdp::runtime
