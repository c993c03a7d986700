#include "optim/updates.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <map>
#include <set>

#include "comm/core/check.h"
#include "optim/gradient_layout.h"
#include "runtime/access_rules.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"

namespace fsdp::optim {
namespace {

using runtime::ParamGroup;
using torch::optim::OptimizerParamGroup;

Update describe(const at::Tensor& parameter, size_t options, size_t index, int64_t number) {
  Update update;
  update.parameter = update.rows = parameter;
  update.options = options;
  update.index = index;
  update.parameter_number = number;
  if (!runtime::is_marked(*parameter.unsafeGetTensorImpl())) return update;
  update.part = runtime::registry().find(parameter);
  if (!update.part) return update;
  const auto& slot = update.part->group->slots()[update.part->slot];
  update.rows = slot.rows_tensor;
  update.first_element = slot.rows().first * slot.row_numel();
  return update;
}

// Throws UsageError whenever an operator that writes the parameter would throw one.
void require_may_be_written(const Update& update, const std::string& operation) {
  if (!update.part) return;
  if (!update.part->group->is_at_rest())
    require(false, where(update, operation), name_of(update),
            " is sharded (expected this rank's rows, found the whole parameter, because a forward scope or a backward "
            "is open): ",
            runtime::ways_out(runtime::Verdict::kRefuseWriteInScope));
  update.part->group->require_no_waiting_gradient(update.part->slot, operation);
}

void take_gradient(Update& update, const std::string& operation) {
  const auto& gradient = update.parameter.grad();
  require_sizes_of(update.rows, gradient, [&] { return where(update, operation) + name_of(update); });
  if (!update.rows.is_non_overlapping_and_dense())
    require(false, where(update, operation), name_of(update),
            " has gaps in its memory: expected a dense tensor, found strides ", update.rows.strides(), " for sizes ",
            update.rows.sizes(), ". Use an optimizer of torch::optim for this parameter");
  update.gradient = laid_out_as(update.rows, gradient);
}

// A rank may wait here until other ranks no longer read a group, so all ranks go through the groups in the same order.
// The thread holds one lock at a time: a wait releases its lock and takes it again, so with several locks two threads
// could take them in different orders.
void wait_to_write(const std::vector<ParamGroup*>& groups) {
  for (auto* group : groups) {
    const MutexLock lock(group->rank_state().mutex);
    group->begin_write();
  }
  for (auto* group : groups) {
    const MutexLock lock(group->rank_state().mutex);
    group->wait_to_write();
  }
}

// Tells each group once that its rows are written, even if the step writes only some of them. Every rank does this, and
// all whole copies of the group become stale.
void announce_writes(const std::vector<ParamGroup*>& groups) {
  for (auto* group : groups)
    group->prepare_write(group->local_rows_depth > 0 ? runtime::WriteKind::kThisRank : runtime::WriteKind::kEveryRank);
}

}  // namespace

std::string name_of(const Update& update) {
  if (update.part) return "parameter '" + update.part->group->slots()[update.part->slot].name() + "'";
  return str_cat("parameter ", update.index, " of parameter group ", update.options);
}

std::string where(const Update& update, const std::string& operation) {
  return update.part ? update.part->group->where(operation) : "[fsdp] " + operation + ": ";
}

std::vector<Updates> rounds_of(const std::vector<OptimizerParamGroup>& groups,
                               const std::function<bool(const at::Tensor&)>& is_wanted) {
  std::vector<Updates> rounds;
  std::map<const void*, size_t> seen;
  int64_t number = 0;
  for (size_t options : c10::irange(groups.size())) {
    const auto& parameters = groups[options].params();
    for (size_t index : c10::irange(parameters.size())) {
      ++number;
      if (!is_wanted(parameters[index])) continue;
      const size_t round = seen[parameters[index].unsafeGetTensorImpl()]++;
      if (round == rounds.size()) rounds.emplace_back();
      rounds[round].push_back(describe(parameters[index], options, index, number));
    }
  }
  return rounds;
}

std::vector<ParamGroup*> groups_of(const std::vector<Updates>& rounds) {
  std::vector<ParamGroup*> groups;
  std::set<ParamGroup*> known;
  for (const auto& updates : rounds)
    for (const auto& update : updates)
      if (update.part && known.insert(update.part->group.get()).second) groups.push_back(update.part->group.get());
  return groups;
}

at::Tensor take_step(const std::string& operation, const torch::optim::Optimizer::LossClosure& closure,
                     const std::vector<OptimizerParamGroup>& groups, const StepActions& actions) {
  at::Tensor loss;
  if (closure) {
    at::AutoGradMode recording(true);
    loss = closure();
  }
  const runtime::OwnOperators own_operators;
  auto rounds = rounds_of(groups, [](const at::Tensor& parameter) { return parameter.defined(); });
  auto locks = runtime::lock_ranks(groups_of(rounds));
  // The check includes parameters without a gradient, because an open backward has set their gradients aside.
  for (const auto& updates : rounds)
    for (const auto& update : updates) require_may_be_written(update, operation);
  for (auto& updates : rounds)
    std::erase_if(updates, [](const Update& update) { return !update.parameter.grad().defined(); });
  for (auto& updates : rounds)
    for (auto& update : updates) {
      take_gradient(update, operation);
      actions.check(update);
    }
  const auto written = groups_of(rounds);
  const Span span(written.empty() ? nullptr : written.front()->rank_state().timeline, "optimizer step", operation);
  locks.clear();
  wait_to_write(written);
  locks = runtime::lock_ranks(written);
  announce_writes(written);
  for (auto& updates : rounds) {
    actions.update_round(updates);
    for (auto& update : updates) update.parameter.unsafeGetTensorImpl()->bump_version();
  }
  return loss;
}

}  // namespace fsdp::optim
