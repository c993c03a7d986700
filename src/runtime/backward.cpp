#include "runtime/backward.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <vector>

#include "comm/core/check.h"
#include "comm/core/fault_point.h"
#include "memory/block.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"

namespace fsdp::runtime {
namespace {

// The bytes that groups free in a backward from which on the pages go back to the system. Fewer stay for the next step.
constexpr int64_t kManyBytes = int64_t{64} << 20;

// Whether the current graph task will accumulate a gradient into the parameter.
bool expects_gradient(const ParamSlot& slot) {
  auto parameter = slot.tensor();
  if (!parameter.defined() || !parameter.requires_grad()) return false;
  auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  if (!accumulator || !runs_in_task(accumulator.get())) return false;
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  return nodes == nullptr || nodes->contains(accumulator.get());
}

// autograd::grad and backward(inputs) leave parameters outside their inputs alone.
bool is_restricted_to_inputs() {
  const auto* inputs = torch::autograd::get_current_graph_task_exec_info();
  return inputs != nullptr && !inputs->empty();
}

void tidy_pages(int64_t gradient_bytes, int64_t parameter_bytes) {
  static std::once_flag kept;
  if (gradient_bytes >= kManyBytes)
    memory::return_free_pages();
  else if (gradient_bytes > 0 && parameter_bytes < kManyBytes)
    std::call_once(kept, memory::keep_free_pages);
}

void add_buckets(const ParamGroup& group, auto&& add) {
  const bool is_last = group.policy.reduces_unused;
  for (size_t bucket = 0; bucket < group.buckets().size(); ++bucket)
    add(OrderedBucket{is_last, is_last ? 0 : group.first_read, group.id(), bucket});
}

// Whether this backward reduces the group, on every rank alike: forward reached it, or gradients came all the same.
bool takes_part(ParamGroup& group, bool restricted) {
  if (!group.reduces() || std::ranges::none_of(group.slots(), &ParamSlot::requires_grad)) return false;
  if (group.expects_gradients()) return true;
  // Gradients that wait since a backward without synchronisation wait on.
  return !restricted && (group.has_gradients() || group.first_read != 0 || group.policy.reduces_unused);
}

// Other ranks may wait for what this thread does not do.
[[noreturn]] void refuse_thread(const ParamGroup& group, const char* operation, const char* what_another_does) {
  const auto error = str_cat("another thread ", what_another_does, " '", group.name(),
                             "' at the moment. Threads that train the same model must take turns: begin when the other "
                             "thread's backward has ended. Then call reset_iter_state() on the model on every rank");
  group.placement().fail(operation, error);
  throw UsageError(group.where(operation) + error);
}

// Held on to while a thread waits: others may drop the model meanwhile. Null if nobody has it any more.
std::shared_ptr<ParamGroup> keep(ParamGroup* group) { return group ? group->weak_from_this().lock() : nullptr; }

// Whether the group's whole parameters go when its last backward has ended.
bool ends_sharded(ParamGroup& group) {
  if (group.stays_after_backward()) return false;
  return !group.pins.are_there() && (!group.is_inside() || !group.stays_after_forward());
}

std::shared_ptr<BackwardTask> find_task(const RankState& rank, int id) FSDP_REQUIRES(rank.mutex) {
  const auto found = rank.backwards.find(id);
  return found == rank.backwards.end() ? nullptr : found->second;
}

// Groups whose sums are made where their rows' gradients lie take no more memory, so any number is in flight.
void start_reduction(RankState& rank, ParamGroup& group, size_t bucket) FSDP_REQUIRES(rank.mutex) {
  group.start_reduction(bucket);
  if (group.placement().is_replicated_only()) return;
  std::erase(rank.reducing, group.id());
  rank.reducing.push_back(group.id());
}

// Returns whether there were as many reductions in flight as there may be.
bool finish_oldest_reduction(RankState& rank) FSDP_REQUIRES(rank.mutex) {
  constexpr size_t kInFlight = 2;
  if (rank.reducing.size() < kInFlight) return false;
  const auto oldest = keep(rank.group(rank.reducing.front()));
  rank.reducing.pop_front();
  if (oldest) oldest->finish_reductions();
  return true;
}

// Starts the buckets that are next in order, as long as they are complete. Who takes no part by then may do so at the
// end. Forwards run again in the reverse order, so what has not been computed again by the time that a bucket of a
// later group, `completed`, is complete will not be.
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
    // While it waits, another thread may start this one.
    if (!finish_oldest_reduction(rank)) start_reduction(rank, *group, number);
  }
}

// At the end of the outermost graph task: what was not reduced yet, then waits for all, unless more backwards follow.
void reduce_rest(RankState& rank, const BackwardTask& task) FSDP_REQUIRES(rank.mutex) {
  std::vector<OrderedBucket> order;
  for (GroupId id : task.groups)
    if (auto* member = rank.group(id)) add_buckets(*member, [&](const OrderedBucket& next) { order.push_back(next); });
  std::ranges::sort(order, std::less());
  // Whether no other backward goes through the group. False also after reset_iter_state().
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
  for (const auto& next : order) {  // in one order on every rank: hooks may communicate
    const auto member = keep(rank.group(next.group));
    if (!member || !is_last(*member) || !member->policy.is_last_backward) continue;
    std::erase(rank.reducing, next.group);
    member->finish_reductions();
  }
}

// All is reduced: the groups leave the backward. Throws what is wrong with their gradients.
void close_task(RankState& rank, BackwardTask& task) FSDP_REQUIRES(rank.mutex) {
  if (rank.backwards.erase(task.id) == 0) return;
  task.span.end();
  std::string error;  // the first one; every group is left all the same
  int64_t gradients = 0, parameters = 0;
  for (GroupId member_id : task.groups) {
    auto* member = rank.group(member_id);
    if (member == nullptr) continue;
    parameters += member->whole_bytes();
    // Another backward of the same iteration would fault the pages in again.
    const bool is_last = member->policy.is_last_backward && member->policy.requires_gradient_sync;
    if (is_last && member->expects_gradients() && member->params().is_on_cpu()) gradients += member->whole_bytes();
    const auto failed = member->leave_backward(task.id);
    if (error.empty() && !failed.empty()) error = member->where("backward") + failed;
    member->leave();
    // In a scope that goes on too: which gradients had all arrived, so that their groups were freed, differs by rank.
    if (!member->is_in_backward() && ends_sharded(*member)) member->reshard();
    if (!member->is_inside()) member->leave_reading();
  }
  if (rank.backwards.empty()) tidy_pages(gradients, parameters);
  fault_point("backward closed");
  require(error.empty(), error);
}

void end_task(RankState& rank, int id) {
  const MutexLock lock(rank.mutex);
  const auto task = find_task(rank, id);  // shared: reset_iter_state() may come while this thread waits
  if (!task) return;                      // it came first
  const OwnOperators own_operators;
  reduce_rest(rank, *task);
  // While the groups can still be reset.
  for (const GroupId member : task->groups)
    if (auto* group = rank.group(member); group != nullptr && group->has_only_task(id)) group->finish_landing();
  close_task(rank, *task);
}

std::shared_ptr<BackwardTask> open_task(RankState& rank, const ParamGroup& group, int id) FSDP_REQUIRES(rank.mutex) {
  fault_point("backward open");
  const auto token = std::make_shared<char>();
  torch::autograd::Engine::get_default_engine().queue_callback(
      [shared = group.shared_rank_state(), id, token] { end_task(*shared, id); });
  return rank.backwards[id] =
             std::make_shared<BackwardTask>(BackwardTask{.id = id,
                                                         .restricted = is_restricted_to_inputs(),
                                                         .runs = token,
                                                         .thread = std::this_thread::get_id(),
                                                         .span = {rank.timeline, Track::kCompute, "backward", ""}});
}

}  // namespace

bool runs_in_task(torch::autograd::Node* node) {
  if (!is_restricted_to_inputs()) return true;
  const auto* inputs = torch::autograd::get_current_graph_task_exec_info();
  const auto it = inputs->find(node);
  return it != inputs->end() && it->second.needed_;
}

bool enter_backward(RankState& rank, ParamGroup& group) {
  int id = torch::autograd::get_current_graph_task_id();
  TORCH_INTERNAL_ASSERT(id != -1, "enter_backward outside a backward");
  if (group.has_task(id)) return false;
  const auto is_unfinished = [](const auto& entry) { return entry.second->runs.expired(); };  // by an exception
  if (std::ranges::any_of(rank.backwards, is_unfinished)) require(false, group.where("backward"), kUnfinishedBackward);
  // A backward inside another one enters groups one by one: the outer one has entered all of their scope.
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
      rank.reads.current = 0;  // what forward read last is a first read here
    }
  for (GroupId member_id : covered) {
    auto* member = rank.group(member_id);
    if (member == nullptr || member->has_task(id)) continue;
    member->enter_backward(id, expects_gradient, /*may_recompute=*/!task->restricted);
    task->groups.push_back(member_id);
    add_buckets(*member, [&](const OrderedBucket& next) { task->buckets.insert(next); });
  }
  return true;
}

// A backward inside another one runs on the same thread. On the CPU nothing keeps two threads from changing the `.grad`
// of one parameter at once; a device has one thread for all.
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
                        "' arrived before its hook was called");
  const int outermost = group.tasks().front();
  group.add_gradient(slot, std::move(gradient), /*from_inside=*/id != outermost);
  group.placement().progress();  // earlier groups' gradients go the sooner
  const size_t bucket = group.slots()[slot].place.bucket;
  if (group.buckets()[bucket].is_complete())
    advance_reductions(rank, outermost, {.group = group.id(), .bucket = bucket});
}

void reset_backward(RankState& rank) {
  rank.backwards.clear();
  rank.reducing.clear();
  // Ranks that got unequally far, in whatever model, would predict differently.
  rank.reads.forget();
}

}  // namespace fsdp::runtime
