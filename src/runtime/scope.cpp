#include "runtime/scope.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

#include "comm/check.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"

namespace fsdp::runtime {
namespace {

void require_no_unfinished_backward(const Groups& groups, const char* operation) {
  if (torch::autograd::get_current_graph_task_id() != -1) return;
  for (const auto& group : groups)
    require(group->open_tasks.empty(), group->where(operation), "a backward through '", group->name(),
            "' did not finish, because an exception ended it or because it runs on another thread. Call "
            "reset_iter_state() on the model on every rank, then start the iteration again");
}

void require_no_local_rows(const Groups& groups) {
  for (const auto& group : groups)
    require(group->local_rows_depth == 0, group->where("forward scope"), "a fsdp::LocalRows is open on '",
            group->name(), "': close it before forward");
}

bool shares_memory(ParamGroup& group) {
  return std::any_of(group.flats().begin(), group.flats().end(),
                     [](const FlatParams& flat) { return flat.shares_memory(); });
}

// Where ranks share memory: after it, every rank's earlier writes to `groups` are there. Collective.
void meet(const Groups& groups) {
  bool shares = false, written = false;
  for (const auto& group : groups) {
    if (!group->begin_scope()) continue;
    shares = true;
    written |= group->take_written();
  }
  if (!shares) return;
  const auto& first = *groups.front();
  try {
    first.process_group().communicator().barrier({"forward scope of " + first.name(), {}, written})->wait();
  } catch (...) {
    for (const auto& group : groups) group->end_reading();
    throw;
  }
}

}  // namespace

OpenScope::OpenScope(Groups groups) : groups_(std::move(groups)), record_(std::make_shared<ScopeRecord>()) {
  auto& rank = groups_.front()->rank_state();
  std::lock_guard lock(rank.mutex);
  require_no_unfinished_backward(groups_, "forward scope");
  require_no_local_rows(groups_);
  record_->root = groups_.front()->id();
  for (const auto& group : groups_) record_->groups.push_back(group->id());
  bool outermost = !groups_.front()->is_inside();
  Groups entered;
  for (const auto& group : groups_)
    if (!group->is_inside()) entered.push_back(group);
  if (!entered.empty()) meet(entered);
  for (const auto& group : groups_) {
    if (!group->is_inside()) {
      group->drop_stale_copy();
      if (!group->stays_after_backward()) group->free_whole();
      group->scope = record_;
      group->first_read = 0;
    }
    group->enter();
  }
  rank.forget_current();
  if (outermost) groups_.front()->forward_order.start();
}

OpenScope::~OpenScope() {
  std::lock_guard lock(groups_.front()->rank_state().mutex);
  for (const auto& group : groups_) {
    group->leave();
    if (group->is_inside() || group->scope->recorded) continue;
    if (!group->stays_after_backward()) group->free_whole();
    group->end_reading();
  }
}

OpenLocalRows::OpenLocalRows(Groups groups) : groups_(std::move(groups)) {
  std::lock_guard lock(groups_.front()->rank_state().mutex);
  require_no_unfinished_backward(groups_, "LocalRows");
  for (const auto& group : groups_)
    require(!group->is_inside(), group->where("LocalRows"), "'", group->name(),
            "' is whole: a forward scope or a backward is open. Close it first");
  for (const auto& group : groups_) group->note_write(WriteKind::kThisRank);
  for (const auto& group : groups_) ++group->local_rows_depth;
}

OpenLocalRows::~OpenLocalRows() {
  std::lock_guard lock(groups_.front()->rank_state().mutex);
  for (const auto& group : groups_) {
    --group->local_rows_depth;
    group->note_write(WriteKind::kThisRank);
  }
}

OpenSummon::OpenSummon(Groups groups) : groups_(groups), scope_(std::move(groups)) {
  std::lock_guard lock(groups_.front()->rank_state().mutex);
  for (const auto& group : groups_) group->start_gather();
  for (const auto& group : groups_) group->finish_gather();
  for (const auto& group : groups_) {
    ++group->summon_depth;
    if (!shares_memory(*group)) continue;
    // What is written to whole parameters must not reach other ranks.
    group->copy_whole();
    group->end_reading();
  }
}

OpenSummon::~OpenSummon() {
  std::lock_guard lock(groups_.front()->rank_state().mutex);
  for (const auto& group : groups_) {
    --group->summon_depth;
    if (!shares_memory(*group)) continue;
    group->free_whole();
    if (group->is_inside()) group->resume_reading();  // for a scope around this one
  }
}

void OpenSummon::write_back() {
  std::lock_guard lock(groups_.front()->rank_state().mutex);
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard own_operators(kShardedKey);
  for (const auto& group : groups_) {
    group->finish_gather();
    group->note_write(WriteKind::kEveryRank);
    for (auto& slot : group->slots())
      if (slot.rows_numel() > 0) slot.rows_tensor.copy_(slot.rows_of(slot.whole_tensor));
  }
}

void reset_iteration(const Groups& groups) {
  auto& rank = groups.front()->rank_state();
  std::lock_guard lock(rank.mutex);
  require(torch::autograd::get_current_graph_task_id() == -1, groups.front()->where("reset_iter_state"),
          "called inside a backward, whose gradients it would lose. Call it after backward() has thrown");
  rank.reset_backward();
  for (const auto& group : groups) group->reset();
}

}  // namespace fsdp::runtime
