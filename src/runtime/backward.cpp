#include "runtime/backward.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <vector>

#include "comm/core/check.h"
#include "comm/core/fault_point.h"
#include "memory/block.h"
#include "runtime/compat.h"

namespace fsdp::runtime {
namespace {

// If a backward frees at least this many bytes, malloc's free pages go back to the system; otherwise malloc keeps them
// for the next step.
constexpr int64_t kManyBytes = int64_t{64} << 20;

// Returns true in autograd::grad and backward(inputs), which give gradients only to their inputs.
bool is_restricted_to_inputs() {
  const auto* inputs = torch::autograd::get_current_graph_task_exec_info();
  return inputs != nullptr && !inputs->empty();
}

// Returns true if the current graph task will accumulate a gradient into the parameter. autograd::grad and
// backward(inputs) skip nodes that lead to none of their inputs.
bool expects_gradient(const ParamSlot& slot) {
  auto parameter = slot.tensor();
  if (!parameter.defined() || !parameter.requires_grad()) return false;
  auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  if (!accumulator) return false;
  if (is_restricted_to_inputs()) {
    const auto* inputs = torch::autograd::get_current_graph_task_exec_info();
    const auto it = inputs->find(accumulator.get());
    if (it == inputs->end() || !it->second.needed_) return false;
  }
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  return nodes == nullptr || nodes->contains(accumulator.get());
}

void add_buckets(const ParamGroup& group, std::set<OrderedBucket>& buckets) {
  const bool is_last = group.policy.reduces_unused;
  for (size_t bucket = 0; bucket < group.buckets().size(); ++bucket)
    buckets.insert(OrderedBucket{is_last, is_last ? 0 : group.first_read, group.id(), bucket});
}

// Returns true if this backward reduces the group, because forward reached the group, the group has gradients, or the
// policy says so. The answer is the same on every rank.
bool takes_part(ParamGroup& group, bool restricted) {
  // Where every rank has all rows, the all-reduce is the only reduction.
  const bool is_left_out = !group.policy.reduction.all_reduces && group.placement().is_replicated_only();
  if (!group.policy.requires_gradient_sync || is_left_out) return false;
  if (std::ranges::none_of(group.slots(), &ParamSlot::requires_grad)) return false;
  if (group.expects_gradients()) return true;
  // A restricted backward does not reduce gradients that an earlier backward without synchronisation has left.
  return !restricted && (group.has_gradients() || group.first_read != 0 || group.policy.reduces_unused);
}

// Throws UsageError, after reporting the failure to other ranks, which may wait for this thread.
[[noreturn]] void refuse_thread(const ParamGroup& group, const char* operation, const char* what_another_does) {
  const auto error =
      str_cat("another thread ", what_another_does, " '", group.name(),
              "' at the moment. Threads that train the same model must take turns: begin when the other thread's "
              "backward has ended. After this error, call reset_iter_state() on the model on every rank");
  group.placement().fail(operation, error);
  throw UsageError(group.where(operation) + error);
}

// Returns a pointer that keeps the group alive while a thread waits, because another thread may drop the model during
// the wait. Returns null if the group no longer has an owner.
std::shared_ptr<ParamGroup> keep(ParamGroup* group) { return group ? group->weak_from_this().lock() : nullptr; }

std::shared_ptr<BackwardTask> find_task(const RankState& rank, int id) FSDP_REQUIRES(rank.mutex) {
  const auto found = rank.backwards.find(id);
  return found == rank.backwards.end() ? nullptr : found->second;
}

// Where every rank has all rows, a reduction needs no memory of its own, so any number of reductions may be in flight.
void start_reduction(RankState& rank, ParamGroup& group, size_t bucket) FSDP_REQUIRES(rank.mutex) {
  group.start_reduction(bucket);
  if (group.placement().is_replicated_only()) return;
  std::erase(rank.reducing, group.id());
  rank.reducing.push_back(group.id());
}

// If as many reductions are in flight as allowed, finishes the oldest one and returns true.
bool finish_oldest_reduction(RankState& rank) FSDP_REQUIRES(rank.mutex) {
  constexpr size_t kInFlight = 2;
  if (rank.reducing.size() < kInFlight) return false;
  const auto oldest = keep(rank.group(rank.reducing.front()));
  rank.reducing.pop_front();
  if (oldest) oldest->finish_reductions();
  return true;
}

// Starts the reductions of the buckets that are next in order, as long as they are complete. Skips groups that do not
// take part in the backward yet; reduce_rest() asks again at its end.
//
// A bucket may also lack gradients that only a recomputed forward gives. Forwards are recomputed in reverse order. So
// once a later bucket (`completed`) is complete, the forwards of earlier buckets will not be recomputed any more, and
// these buckets do not wait for such gradients.
void advance_reductions(RankState& rank, int id, const OrderedBucket& completed) FSDP_REQUIRES(rank.mutex) {
  while (const auto task = find_task(rank, id)) {
    if (task->buckets.empty()) return;
    const auto [is_last, first_read, group_id, number] = *task->buckets.begin();
    const auto group = keep(rank.group(group_id));
    if (!group || group->buckets()[number].is_begun || !takes_part(*group, task->restricted)) {
      task->buckets.erase(task->buckets.begin());
      continue;
    }
    const auto& bucket = group->buckets()[number];
    const auto* last = rank.group(completed.group);
    const bool passes = last != nullptr && last != group.get() && !last->buckets()[completed.bucket].is_begun;
    const bool is_ready = bucket.is_complete() || (passes && bucket.missing == 0);
    if (!is_ready || group->policy.reduces_unused) return;
    // While finish_oldest_reduction waits, another thread may start this bucket, so the loop looks again.
    if (!finish_oldest_reduction(rank)) start_reduction(rank, *group, number);
  }
}

// Called at the end of a graph task. Reduces what has not been reduced yet, in groups that no other graph task has
// entered. Then waits for all reductions, except in groups with set_is_last_backward(false).
void reduce_rest(RankState& rank, const BackwardTask& task) FSDP_REQUIRES(rank.mutex) {
  std::set<OrderedBucket> order;
  for (GroupId id : task.groups)
    if (const auto* member = rank.group(id)) add_buckets(*member, order);
  // Returns true if only this graph task has entered the group; false after reset_iter_state().
  const auto is_last = [&](const ParamGroup& group) { return group.has_only_task(task.id); };
  for (const auto& next : order) {
    const auto group = keep(rank.group(next.group));
    if (!group || !is_last(*group) || !takes_part(*group, task.restricted)) continue;
    const auto waits = [&](const ParamSlot& slot) { return slot.place.bucket == next.bucket && slot.waits; };
    if (group->buckets()[next.bucket].is_begun && std::ranges::none_of(group->slots(), waits)) continue;
    while (finish_oldest_reduction(rank)) {
    }
    if (is_last(*group)) start_reduction(rank, *group, next.bucket);
  }
  for (const auto& next : order) {  // in the same order on every rank, because hooks may communicate
    const auto member = keep(rank.group(next.group));
    if (!member || !is_last(*member) || !member->policy.is_last_backward) continue;
    std::erase(rank.reducing, next.group);
    member->finish_reductions();
  }
}

// Lets all groups leave the graph task after their gradients were reduced. Throws the first error that a group returns.
void close_task(RankState& rank, BackwardTask& task) FSDP_REQUIRES(rank.mutex) {
  if (rank.backwards.erase(task.id) == 0) return;
  task.span.end();
  std::string error;  // the first error; the task still leaves the other groups
  int64_t gradients = 0, parameters = 0;
  for (GroupId member_id : task.groups) {
    auto* member = rank.group(member_id);
    if (member == nullptr) continue;
    parameters += member->whole_bytes();
    // Pages go back to the system only after an iteration's last backward: another one would fault them in again.
    const bool is_last = member->policy.is_last_backward && member->policy.requires_gradient_sync;
    if (is_last && member->expects_gradients() && member->params().is_on_cpu()) gradients += member->whole_bytes();
    const auto failed = member->leave_backward(task.id);
    if (error.empty() && !failed.empty()) error = member->where("backward") + failed;
    member->leave();
    // The group is resharded even if its scope goes on. A later read then gathers it on every rank.
    const bool stays = member->stays_after_backward() || member->pins.are_there() ||
                       (member->is_inside() && member->stays_after_forward());
    if (!member->is_in_backward() && !stays) member->reshard();
    if (!member->is_inside()) member->leave_reading();
  }
  static std::once_flag kept;
  if (rank.backwards.empty() && gradients >= kManyBytes)
    memory::return_free_pages();
  else if (rank.backwards.empty() && gradients > 0 && parameters < kManyBytes)
    std::call_once(kept, memory::keep_free_pages);
  fault_point("backward closed");
  require(error.empty(), error);
}

void end_task(RankState& rank, int id) {
  const MutexLock lock(rank.mutex);
  const auto task = find_task(rank, id);  // shared, because reset_iter_state() may drop it while this thread waits
  if (!task) return;                      // reset_iter_state() has dropped it
  const OwnOperators own_operators;
  reduce_rest(rank, *task);
  // finish_landing may throw, so it comes before close_task: reset_iter_state() can then still reset the groups.
  for (const GroupId member : task->groups)
    if (auto* group = rank.group(member); group != nullptr && group->has_only_task(id)) group->finish_landing();
  close_task(rank, *task);
}

std::shared_ptr<BackwardTask> open_task(RankState& rank, const ParamGroup& group, int id) FSDP_REQUIRES(rank.mutex) {
  fault_point("backward open");
  const auto token = std::make_shared<char>();
  torch::autograd::Engine::get_default_engine().queue_callback(
      [shared = group.shared_rank_state(), id, token] { end_task(*shared, id); });
  return rank.backwards[id] = std::make_shared<BackwardTask>(BackwardTask{.id = id,
                                                                          .restricted = is_restricted_to_inputs(),
                                                                          .runs = token,
                                                                          .thread = std::this_thread::get_id(),
                                                                          .span = {rank.timeline, "backward", ""}});
}

}  // namespace

bool enter_backward(RankState& rank, ParamGroup& group) {
  int id = torch::autograd::get_current_graph_task_id();
  TORCH_INTERNAL_ASSERT(id != -1, "enter_backward outside a backward");
  if (group.has_task(id)) return false;
  const auto is_unfinished = [](const auto& entry) { return entry.second->runs.expired(); };  // an exception ended it
  if (std::ranges::any_of(rank.backwards, is_unfinished)) require(false, group.where("backward"), kUnfinishedBackward);
  // A backward inside another one enters only this group, because the outer one has entered all groups of the scope.
  auto covered = group.scope && !group.is_in_backward() ? group.scope->groups : std::vector<GroupId>{group.id()};
  for (GroupId member_id : covered)
    if (auto* member = rank.group(member_id)) {
      if (member->local_rows_depth > 0)
        require(false, member->where("backward"), "an fsdp::LocalRows is open on '", member->name(),
                "'. Close the LocalRows before backward");
      if (member->policy.post_accumulate_grad_hook && member->is_in_scope() &&
          std::ranges::any_of(member->slots(), expects_gradient))
        require(false, member->where("backward"), "'", member->name(),
                "' has a hook set by set_post_accumulate_grad_hook, which gets the group's rows, but a forward scope "
                "is open on the group. Close the scope before backward");
      if (member->openings > 0) refuse_thread(*member, "backward", "opens a forward scope on");
      require_no_backward_elsewhere(rank, *member, "backward");
    }
  auto task = find_task(rank, id);
  if (!task) task = open_task(rank, group, id);
  if (group.scope)
    if (auto* root = rank.group(group.scope->root); root != nullptr && !root->is_in_backward()) {
      rank.reads.orders[root->id()].backward.start();
      rank.reads.current = 0;  // so that a read of the group that forward read last counts
    }
  for (GroupId member_id : covered) {
    auto* member = rank.group(member_id);
    if (member == nullptr || member->has_task(id)) continue;
    member->enter_backward(id, expects_gradient, /*may_recompute=*/!task->restricted);
    task->groups.push_back(member_id);
    add_buckets(*member, task->buckets);
  }
  return true;
}

// On the CPU two threads that run backwards through one group could change the same `.grad` at once. A backward inside
// another one runs on the same thread. On a device one thread of autograd runs the nodes of all backwards.
void require_no_backward_elsewhere(RankState& rank, ParamGroup& group, const char* operation) {
  if (!group.params().is_on_cpu()) return;
  for (const int id : group.tasks()) {
    const auto task = find_task(rank, id);
    if (task && !task->runs.expired() && task->thread != std::this_thread::get_id())
      refuse_thread(group, operation, "runs a backward through");
  }
}

void gradient_arrived(RankState& rank, ParamGroup& group, size_t slot, at::Tensor gradient) {
  const OwnOperators own_operators;
  const int id = torch::autograd::get_current_graph_task_id();
  TORCH_INTERNAL_ASSERT(group.has_task(id), "the gradient of '", group.slots()[slot].name(),
                        "' arrived before the graph task entered the group");
  const int outermost = group.tasks().front();
  group.add_gradient(slot, std::move(gradient), /*from_inside=*/id != outermost);
  group.placement().progress();  // advances the reductions of earlier groups
  const size_t bucket = group.slots()[slot].place.bucket;
  if (group.buckets()[bucket].is_complete())
    advance_reductions(rank, outermost, {.group = group.id(), .bucket = bucket});
}

void reset_backward(RankState& rank) {
  rank.backwards.clear();
  rank.reducing.clear();
  // All predictions are dropped: ranks that got unequally far before the exception would predict different reads.
  rank.reads.forget();
}

}  // namespace fsdp::runtime
