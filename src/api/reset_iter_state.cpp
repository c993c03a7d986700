#include <ATen/ops/empty.h>
#include <fsdp/group.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>
#include <span>

#include "api/group_view.h"
#include "comm/core/check.h"
#include "runtime/backward.h"
#include "runtime/param_group.h"

namespace fsdp {
namespace {

// What the ranks tell each other after an exception.
struct AfterException {
  bool wrote_alike = true;       // all ranks wrote rows equally often
  bool was_in_backward = false;  // the backward of some rank did not finish
};

// Brings the ranks together after an exception. If all of them got equally far, barriers suffice. Otherwise the
// communicators start over, which drops everything in flight. The ranks then compare `writes`, their numbers of writes
// to rows, and `in_backward`. Collective.
AfterException meet_after_exception(const std::vector<std::shared_ptr<runtime::ParamGroup>>& members, int64_t writes,
                                    bool in_backward) {
  const auto& group = *members.front();
  std::vector<const ProcessGroup*> groups;  // each process group once, the one of all ranks first
  std::vector<std::shared_ptr<Communicator>> further_steps;
  const auto add_once = [](auto& list, const auto& item) {
    if (std::ranges::find(list, item) == list.end()) list.push_back(item);
  };
  for (const auto& member : members) {
    for (const auto* ranks : member->placement().process_groups())
      if (ranks != member->placement().pipe_axis.get()) add_once(groups, ranks);
    for (const auto& steps : member->placement().further_steps()) add_once(further_steps, steps);
  }
  const Tag tag = group.tag("reset_iter_state of " + group.name());
  const auto count = static_cast<double>(writes);
  auto most = at::empty({3}, at::kDouble);
  auto* values = most.mutable_data_ptr<double>();
  const auto compare = [&] {
    std::ranges::copy(std::array{count, -count, in_backward ? 1.0 : 0.0}, values);
    return groups.front()->communicator().all_reduce(most, ReduceOp::kMax, tag);
  };
  const auto start_over = [&] {
    // The process groups start over one after the other. Ranks that wait for this rank in a later group must hear of it
    // first.
    for (const auto* ranks : std::span(groups).subspan(1))
      ranks->communicator().fail("reset_iter_state",
                                 "the rank starts over after an exception. Call reset_iter_state() on every rank");
    for (const auto* ranks : groups) ranks->communicator().start_over();
  };
  // Tensor-parallel layers use further queues over the tensor axis, which the barriers below do not cover. With such
  // layers everything therefore starts over at once.
  const auto is_split = [](const auto& member) { return member->placement().tensor_axis != nullptr; };
  try {
    if (std::ranges::any_of(members, is_split)) start_over();
    // Barriers begin in all queues at once, because a peer may wait for this rank in any of them. After they are done,
    // no first step of a reduction is in flight that could begin a second step, so those queues can be joined too.
    std::vector<std::shared_ptr<Work>> barriers;
    for (const auto* ranks : groups)
      for (auto* queue : {&ranks->communicator(), &ranks->reductions()}) barriers.push_back(queue->barrier(tag));
    for (const auto& barrier : barriers) group.rank_state().wait(*barrier);
    for (const auto& steps : further_steps) group.rank_state().wait(*steps->barrier(tag));
    group.rank_state().wait(*compare());
  } catch (const PeerLost&) {
    throw;
  } catch (const Error&) {
    start_over();
    group.rank_state().wait(*compare());
  }
  return {values[0] == count && values[1] == -count, values[2] > 0};
}

}  // namespace

// Makes every rank forget the iteration that an exception ended: open graph tasks, gradients in flight, whole copies,
// counts of writes, predictions. Collective.
void Group::reset_iter_state() const {
  const auto& groups = view_->groups;
  auto& rank = groups.front()->rank_state();
  const MutexLock lock(rank.mutex);
  require(
      torch::autograd::get_current_graph_task_id() == -1, groups.front()->where("reset_iter_state"),
      "called inside a backward, whose gradients would be lost. Call reset_iter_state() after backward() has thrown");
  for (const auto& group : groups)
    if (group->summon_depth > 0)
      require(false, group->where("reset_iter_state"), "a summon_full_params is open on '", group->name(),
              "', and reset_iter_state would lose its values. Close the summon_full_params first");
  int64_t writes = 0;
  bool in_backward = false;
  for (const auto& group : groups) {
    writes += group->writes().total();
    in_backward |= group->is_in_backward();
    if (!group->is_in_scope()) group->end_read();  // a peer that waits to write can come here only afterwards
  }
  const auto ranks = meet_after_exception(groups, writes, in_backward);
  runtime::reset_backward(rank);
  for (const auto& group : groups) {
    group->reset();
    // On some ranks the unfinished backward may have added some gradients to `.grad`, so all are dropped.
    if (ranks.was_in_backward) group->drop_gradients();
  }
  if (!ranks.wrote_alike)
    throw Mismatch(
        groups.front()->where("reset_iter_state") +
        "some ranks made an optimizer step that others did not make, so the model's rows are from two different steps. "
        "Load a checkpoint on every rank, which makes the model usable again, or start all ranks again");
}

}  // namespace fsdp
