#include "runtime/scope.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>
#include <span>

#include "comm/core/check.h"
#include "comm/core/current_stream.h"
#include "comm/core/fault_point.h"
#include "runtime/access_rules.h"
#include "runtime/backward.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"

namespace fsdp::runtime {
namespace {

constexpr const char* kSummon = "summon_full_params";

void require_no_unfinished_backward(const ParamGroup& group, const char* operation) {
  if (group.is_in_backward() && torch::autograd::get_current_graph_task_id() == -1)
    require(false, group.where(operation), "'", group.name(), "': ", kUnfinishedBackward);
}

// A whole copy that may be written is made from rows at rest.
Groups require_outside(Groups groups) {
  std::lock_guard lock(groups.front()->rank_state().mutex);
  for (const auto& group : groups) {
    require_no_unfinished_backward(*group, kSummon);
    if (group->is_inside())
      require(false, group->where(kSummon), "'", group->name(),
              "' is whole already: a forward scope, a backward or another summon_full_params is open. Close it first, "
              "or read single parameters with fsdp::full_tensor. ",
              kOtherValuesInForward);
  }
  return groups;
}

// Returns whether another thread may have done something meanwhile.
bool wait_to_write(const Groups& groups) {
  for (const auto& group : groups) group->begin_write();
  bool waited = false;
  for (const auto& group : groups) waited |= group->wait_to_write();
  return waited;
}

// Waits, before the last scope on a group closes, for operators of other threads, which need its parameters unsharded.
void wait_for_operators(const Groups& groups) {
  const auto waits = [](const auto& group) { return group->is_left_next() && group->wait_for_operators(); };
  while (std::ranges::count_if(groups, waits) > 0) {
  }
}

// A CUDA graph would repeat copies to and from the same addresses, but each step takes its memory anew.
void require_no_graph(ParamGroup& group) {
  for (const auto& flat : group.params().flats()) {
    const auto device = flat.whole().form.device;
    if (device.is_cpu() || !records_graph(current_stream(device))) continue;
    require(false, group.where("forward scope"), "the current stream of ", device,
            " records a graph, which a step of a sharded model cannot be part of: its gathers take memory anew each "
            "time. Run the step outside of the capture.");
  }
}

// The ranks of one shard axis meet before they read, of groups of which this is the first.
struct ScopeBarrier {
  ParamGroup* first;
  uint32_t writes = 0;  // what they tell each other
};

// Where ranks share memory: after it, every rank's earlier writes to `groups` are there. Collective. If it fails, every
// rank has counted the same writes and scopes.
void meet(const Groups& groups, const std::string& call) {
  std::vector<ScopeBarrier> barriers;
  const auto& first = *groups.front();
  size_t begun = 0;
  try {
    while (begun < groups.size()) {
      const auto& group = groups[begun++];
      if (!group->begin_scope()) continue;
      const auto* ranks = &group->placement().shard();
      const auto is_theirs = [&](const ScopeBarrier& known) { return &known.first->placement().shard() == ranks; };
      auto barrier = std::ranges::find_if(barriers, is_theirs);
      if (barrier == barriers.end()) barrier = barriers.insert(barrier, {group.get()});
      barrier->writes += group->writes_told();
    }
    std::vector<std::shared_ptr<Work>> works;
    for (const auto& [group, writes] : barriers)
      works.push_back(group->placement().shard().communicator().barrier(
          first.tag("forward scope of " + first.name(), writes, call)));
    const Span waiting(works.empty() ? nullptr : first.rank_state().timeline, Track::kCompute, "wait for scope",
                       first.name());
    for (const auto& work : works) first.rank_state().wait(*work);
  } catch (...) {
    for (const auto& group : std::span(groups).first(begun)) group->cancel_scope();
    for (const auto& barrier : barriers) barrier.first->placement().pass_on_failure("forward scope");
    throw;
  }
}

// While this thread waits, another one may open and close scopes on `groups`, but neither run a backward nor write.
void meet_before_scope(const Groups& groups, const std::string& call) {
  Groups closed;
  for (const auto& group : groups) {
    if (!group->is_inside()) closed.push_back(group);
    ++group->openings;
  }
  std::exception_ptr error;
  try {
    if (!closed.empty()) meet(closed, call);
  } catch (...) {
    error = std::current_exception();
  }
  for (const auto& group : groups) {
    --group->openings;
    if (error && !group->is_inside()) group->leave_reading();
  }
  if (error) std::rethrow_exception(error);
}

// What the ranks tell each other after an exception.
struct AfterException {
  bool wrote_alike = true;
  bool was_in_backward = false;  // some rank's backward did not finish
};

// Brings the ranks together after an exception: where all of them got equally far collectives do, else everything that
// is in flight is dropped. `writes` to rows are compared. Collective.
AfterException meet_after_exception(const Groups& members, int64_t writes, bool in_backward) {
  const auto& group = *members.front();
  std::vector<const ProcessGroup*> groups;  // each once, that of all ranks first
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
    // One group after the other; those who wait for this rank in a later one learn it before.
    for (const auto* ranks : std::span(groups).subspan(1))
      ranks->communicator().fail("reset_iter_state", "it starts over. Call reset_iter_state() on every rank");
    for (const auto* ranks : groups) ranks->communicator().start_over();
  };
  // Layers that are cut over a tensor axis communicate there in orders of their own, so all orders begin anew first.
  const auto is_split = [](const auto& member) { return member->placement().tensor_axis != nullptr; };
  try {
    if (std::ranges::any_of(members, is_split)) start_over();
    // In all orders at once: a peer may wait for this rank in any. Then no first step is left that could begin a
    // second.
    std::vector<std::shared_ptr<Work>> barriers;
    for (const auto* ranks : groups)
      for (auto* order : {&ranks->communicator(), &ranks->reductions()}) barriers.push_back(order->barrier(tag));
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

OpenScope::OpenScope(Groups groups, const std::string& call)
    : groups_(std::move(groups)),
      record_(std::make_shared<ScopeRecord>()),
      span_(groups_.front()->rank_state().timeline, Track::kCompute, "forward", groups_.front()->name()) {
  auto& rank = groups_.front()->rank_state();
  std::lock_guard lock(rank.mutex);
  const bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
  for (const auto& group : groups_) {
    if (!in_backward) require_no_backward_elsewhere(*group, "forward scope");
    require_no_unfinished_backward(*group, "forward scope");
    if (group->local_rows_depth > 0)
      require(false, group->where("forward scope"), "a fsdp::LocalRows is open on '", group->name(),
              "': close it before forward");
    require_no_graph(*group);
  }
  record_->root = groups_.front()->id();
  record_->observed = at::isRecordFunctionEnabled();
  record_->records = at::GradMode::is_enabled();
  record_->groups.reserve(groups_.size());
  for (const auto& group : groups_) record_->groups.push_back(group->id());
  rank.note_forward();
  meet_before_scope(groups_, call);
  bool outermost = !groups_.front()->is_inside();
  for (const auto& group : groups_) {
    if (!group->is_inside()) {
      group->drop_stale_copy();
      if (!group->stays_after_backward()) group->reshard();
      group->scope = record_;
      group->forget_reads();
    }
    group->enter();
  }
  // What autocast makes of whole parameters it would keep until it ends, also after they were written.
  autocast_cached_ = at::autocast::is_autocast_cache_enabled();
  at::autocast::set_autocast_cache_enabled(false);
  rank.reads.current = 0;  // a new pass: the next read counts as a first one
  if (outermost) rank.reads.orders[record_->root].forward.start();
  fault_point("scope open");
}

OpenScope::~OpenScope() {
  auto& rank = groups_.front()->rank_state();
  std::lock_guard lock(rank.mutex);
  wait_for_operators(groups_);
  for (const auto& group : groups_) {
    group->leave();
    if (group->is_inside()) continue;
    if (!group->scope->recorded && !group->stays_after_backward()) group->reshard();
    group->leave_reading();
  }
  if (thread_ == std::this_thread::get_id()) at::autocast::set_autocast_cache_enabled(autocast_cached_);
  fault_point("scope closed");
}

OpenLocalRows::OpenLocalRows(Groups groups) : groups_(std::move(groups)) {
  std::lock_guard lock(groups_.front()->rank_state().mutex);
  do {
    for (const auto& group : groups_) {
      require_no_unfinished_backward(*group, "LocalRows");
      if (group->is_inside())
        require(false, group->where("LocalRows"), "'", group->name(),
                "' is whole: a forward scope or a backward is open. Close it first");
    }
  } while (wait_to_write(groups_));
  for (const auto& group : groups_) group->note_write(WriteKind::kThisRank);
  for (const auto& group : groups_) ++group->local_rows_depth;
}

OpenLocalRows::~OpenLocalRows() {
  std::lock_guard lock(groups_.front()->rank_state().mutex);
  for (const auto& group : groups_) {
    --group->local_rows_depth;
    group->end_write();
  }
}

OpenSummon::OpenSummon(Groups groups, bool rank0_only, bool offload)
    : groups_(require_outside(std::move(groups))), rank0_only_(rank0_only), scope_(std::in_place, groups_, kSummon) {
  std::lock_guard lock(groups_.front()->rank_state().mutex);
  const bool keeps = !rank0_only || groups_.front()->placement().process_group().rank() == 0;
  try {
    if (rank0_only || offload)
      for (const auto& group : groups_) {  // one at a time, on every rank alike
        group->wait_for_unshard(kSummon);
        if (!keeps)
          group->reshard();
        else if (offload)
          group->offload_whole();
      }
    if (keeps) {
      for (const auto& group : groups_) group->unshard(kSummon);
      for (const auto& group : groups_) group->wait_for_unshard(kSummon);
      // What is written to whole parameters must not reach other ranks.
      for (const auto& group : groups_) group->copy_whole();
      for (const auto& group : groups_) {
        ++group->summon_depth;
        group->leave_reading();
      }
    }
  } catch (...) {
    for (const auto& group : groups_) group->reshard();
    throw;
  }
  if (!keeps) scope_.reset();
}

OpenSummon::~OpenSummon() {
  if (!scope_) return;
  std::lock_guard lock(groups_.front()->rank_state().mutex);
  wait_for_operators(groups_);
  for (const auto& group : groups_) {
    group->reshard();  // what was written to it is this rank's alone
    --group->summon_depth;
  }
}

void OpenSummon::write_back() {
  require(
      !rank0_only_, groups_.front()->where("SummonFullParams::write_back"),
      "expected whole parameters on every rank, found rank0_only, with which the other ranks would keep the rows that "
      "they had. Summon them without it, or write rows (fsdp::LocalRows)");
  std::lock_guard lock(groups_.front()->rank_state().mutex);
  for (const auto& group : groups_)
    for (const auto& slot : group->slots())
      require(slot.whole_tensor.scalar_type() == slot.rows_tensor.scalar_type(),
              group->where("SummonFullParams::write_back"), "whole values of parameter '", slot.name(), "' are ",
              slot.whole_tensor.scalar_type(),
              " by its MixedPrecisionPolicy, so all of its rows would be rounded from ", slot.rows_tensor.scalar_type(),
              ". Write rows (fsdp::LocalRows)");
  const OwnOperators own_operators;
  for (const auto& group : groups_) {
    group->wait_for_unshard();
    group->note_write(WriteKind::kEveryRank);
    for (auto& slot : group->slots())
      if (slot.rows_numel() > 0) rows_of_tensor(slot.whole_tensor)(slot, slot.rows_tensor);
  }
}

void reset_iteration(const Groups& groups) {
  auto& rank = groups.front()->rank_state();
  std::lock_guard lock(rank.mutex);
  require(torch::autograd::get_current_graph_task_id() == -1, groups.front()->where("reset_iter_state"),
          "called inside a backward, whose gradients it would lose. Call it after backward() has thrown");
  for (const auto& group : groups)
    if (group->summon_depth > 0)
      require(false, group->where("reset_iter_state"), "a summon_full_params is open on '", group->name(),
              "', whose values it would lose. Close it first");
  int64_t writes = 0;
  bool in_backward = false;
  for (const auto& group : groups) {
    writes += group->writes().total();
    in_backward |= group->is_in_backward();
    if (!group->is_in_scope()) group->end_read();  // a peer may wait to write before it comes here
  }
  const auto ranks = meet_after_exception(groups, writes, in_backward);
  reset_backward(rank);
  for (const auto& group : groups) {
    group->reset();
    // Some of its gradients were added to `.grad`, on some ranks.
    if (ranks.was_in_backward) group->drop_gradients();
  }
  if (!ranks.wrote_alike)
    throw Mismatch(
        groups.front()->where("reset_iter_state") +
        "some ranks made an optimizer step that others did not make, so rows of two steps are mixed. The model "
        "can be used again: load a checkpoint on every rank, or start all ranks again");
}

}  // namespace fsdp::runtime
