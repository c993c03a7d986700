#include "runtime/operand_access.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/core/check.h"
#include "runtime/backward.h"
#include "runtime/compat.h"
#include "runtime/compute_dtype.h"
#include "runtime/refusal.h"
#include "runtime/row_operands.h"

namespace fsdp::runtime {
namespace {

// A marked operand of the current operator.
struct MarkedOperand : OperatorCall::Operand {
  Part part;
  bool is_parameter = false;  // not a view of it
};
using MarkedOperands = c10::SmallVector<MarkedOperand, 4>;

MarkedOperands marked_operands(const OperatorCall& call) {
  MarkedOperands marked;
  for (const auto& operand : call.tensors) {
    if (!is_marked(*operand.tensor->unsafeGetTensorImpl())) continue;
    if (auto part = part_of(*operand.tensor)) {
      bool is_parameter = part->group->slots()[part->slot].is(*operand.tensor);
      marked.push_back({operand, std::move(*part), is_parameter});
    }
  }
  return marked;
}

using Replacements = std::vector<Replacement>;

// Visits them: in lists those of the same position.
template <class Visit>
void visit_others(const OperatorCall& call, const MarkedOperand& operand, const Visit& visit) {
  if (call.traits.kind != OperatorKind::kForeach) {
    for (const auto& other : call.tensors)
      if (other.tensor != operand.tensor) visit(other);
    return;
  }
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    const auto& argument = call.arguments[i];
    if (argument.isTensor() && argument.toTensor().defined()) visit(OperatorCall::Operand{&argument.toTensor(), i});
    if (!argument.isTensorList() || i == operand.argument) continue;
    const auto list = argument.toListRef();
    if (operand.element < list.size())
      visit(OperatorCall::Operand{&list[operand.element].toTensor(), i, operand.element});
  }
}

at::Tensor take_rows(const at::Tensor& whole, const at::Tensor& rows, const RowsIn& found) {
  const c10::impl::ExcludeDispatchKeyGuard own_operators(kShardedKey);
  return whole.narrow(found.dim - (rows.dim() - whole.dim()), found.first, found.count);
}

// Where a parameter's rows take first dims together: an operand that is broadcast to the whole parameter, with these
// dims taken together too; undefined if it is not. The dims behind them stay as they are, so that a factor of each row
// is one.
at::Tensor with_joined_dims(const at::Tensor& operand, const ParamSlot& slot) {
  const auto behind = slot.row_sizes().size() - 1;
  const auto sizes = operand.sizes();
  if (slot.joined_dims() < 2 || sizes.size() <= behind || !at::is_expandable_to(sizes, slot.sizes())) return {};
  auto expanded = slot.sizes().vec(), joined = slot.row_sizes().vec();
  std::copy_n(sizes.end() - static_cast<ptrdiff_t>(behind), behind, expanded.end() - static_cast<ptrdiff_t>(behind));
  std::copy_n(sizes.end() - static_cast<ptrdiff_t>(behind), behind, joined.begin() + 1);
  const c10::impl::ExcludeDispatchKeyGuard own_operators(kShardedKey);
  return operand.expand(expanded).reshape(joined);
}

// Where a parameter's rows take first dims together: whether an operand of the rows' sizes on this rank is broadcast to
// the whole parameter, too. It would meet other elements then than the same operand does on a rank with other rows.
bool may_be_whole(const at::Tensor& operand, const ParamSlot& slot) {
  const auto sizes = operand.sizes();
  return slot.joined_dims() > 1 && operand.numel() > 1 && sizes == slot.rows_tensor.sizes() &&
         sizes.size() == slot.row_sizes().size() && at::is_expandable_to(sizes, slot.sizes());
}

// The part that another operand lies on: among those that were looked up, unless they are as many as lists have.
const Part* part_beside(const OperatorCall& call, const at::Tensor& tensor, std::span<const MarkedOperand> operands,
                        std::optional<Part>& looked_up) {
  if (!is_marked(*tensor.unsafeGetTensorImpl())) return nullptr;
  if (call.traits.kind != OperatorKind::kForeach)
    for (const auto& operand : operands)
      if (operand.tensor == &tensor) return &operand.part;
  looked_up = part_of(tensor);
  return looked_up ? &*looked_up : nullptr;
}

// How the operands that an operand meets element by element fit it, and the one that decides.
std::pair<Fit, const at::Tensor*> fit_of_others(const OperatorCall& call, const MarkedOperand& operand,
                                                std::span<const MarkedOperand> operands, Replacements& replacements) {
  const auto& group = operand.part.group;
  const auto slot = operand.part.slot;
  const auto& rows = *operand.tensor;
  std::pair<Fit, const at::Tensor*> worst{Fit::kFits, nullptr};
  std::optional<std::optional<RowsIn>> found;  // looked for if asked for
  visit_others(call, operand, [&](const OperatorCall::Operand& other) {
    std::optional<Part> looked_up;
    const auto* part = part_beside(call, *other.tensor, operands, looked_up);
    Fit fit = Fit::kFits;
    if (part && part->kind != PartKind::kWhole) {
      fit = fit_of_rows({rows, *group, slot, operand.part.kind == PartKind::kResult},
                        {*other.tensor, *part->group, part->slot, part->kind == PartKind::kResult});
    } else if (part && part->group == group && part->slot == slot) {
      fit = Fit::kMisfits;  // the whole parameter beside its gradient's rows, in a scope
    } else if (!part && may_be_whole(*other.tensor, group->slots()[slot])) {
      fit = Fit::kMisfits;
    } else if (other.tensor->sizes() != rows.sizes()) {
      if (!found) found = find_rows(rows, group->slots()[slot]);
      const auto joined = with_joined_dims(*other.tensor, group->slots()[slot]);
      const auto& whole = joined.defined() ? joined : *other.tensor;
      fit = call.traits.writes(other.argument) ? Fit::kWrittenFromRows : fit_of(whole, rows, *found);
      // Of other sizes than the operand, also where this rank has all rows.
      if (joined.defined() && fit == Fit::kFits && *found) fit = Fit::kTakesRows;
      // It would fit the rows, not the parameter.
      const bool joins = group->slots()[slot].joined_dims() > 1;
      if (joins && !joined.defined() && rows.dim() > 1 && fit == Fit::kTakesRows) fit = Fit::kMisfits;
      if (fit == Fit::kTakesRows) replacements.push_back({other, take_rows(whole, rows, **found)});
    }
    if (fit > worst.first) worst = {fit, other.tensor};
  });
  return worst;
}

// What printing sees. Nothing can be trained through it.
at::Tensor rows_to_print(const MarkedOperand& operand) {
  const c10::impl::ExcludeDispatchKeyGuard own_operators(kShardedKey);
  const auto& group = *operand.part.group;
  const auto& name = operand.part.group->slots()[operand.part.slot].name();
  const auto place = group.where("aten::to") + noun_of(operand.part.kind) + name;
  TORCH_WARN_ONCE(place,
                  "' is sharded, and outside a forward scope it is this rank's rows, which is what is printed (said "
                  "once). The whole value is fsdp::full_tensor(p), on every rank");
  auto copy = operand.tensor->detach().clone();
  if (at::GradMode::is_enabled() && operand.tensor->requires_grad())
    copy.requires_grad_().register_hook([place](const at::Tensor&) {
      throw UsageError(place + "' is sharded, and its rows were taken to be printed: no gradient reaches it. " +
                       ways_out(Verdict::kRefuseOutsideScope));
    });
  return copy;
}

void replace(std::span<c10::IValue> arguments, const Replacements& replacements) {
  c10::SmallVector<size_t, 4> copied;  // lists
  for (const auto& [operand, tensor] : replacements) {
    auto& argument = arguments[operand.argument];
    if (argument.isTensor()) {
      argument = tensor;
      continue;
    }
    if (std::ranges::find(copied, operand.argument) == copied.end()) {
      argument = argument.toTensorList().copy();
      copied.push_back(operand.argument);
    }
    argument.toTensorList().set(operand.element, tensor);
  }
}

// Whether the operator takes some of the tensor's rows by their numbers, which are this rank's own.
bool selects_rows(const OperatorCall& call, const MarkedOperand& operand) {
  if (!call.traits.selecting_argument) return false;
  const auto& tensor = *operand.tensor;
  const auto& rows = operand.part.group->slots()[operand.part.slot].rows_tensor;
  // In a view, such as a transposed one, rows may be another dimension than the first.
  if (tensor.dim() != rows.dim() || tensor.dim() == 0 || tensor.size(0) != rows.size(0) ||
      tensor.stride(0) != rows.stride(0))
    return true;
  return !call.selecting_dim || *call.selecting_dim == 0 || *call.selecting_dim == -tensor.dim();
}

// Whether the operator makes a new tensor of rows that are not the operand's first dim, so that nothing would tell
// which dim of the result has them.
bool reorders_rows(const OperatorCall& call, const MarkedOperand& operand) {
  const auto kind = call.traits.kind;
  const bool writes = call.traits.written_arguments != 0;
  const bool makes_new = kind == OperatorKind::kViewOrCopy || kind == OperatorKind::kClone ||
                         (kind == OperatorKind::kCopy && !writes && operand.argument == 0) ||
                         ((kind == OperatorKind::kPointwise || kind == OperatorKind::kForeach) && !writes);
  auto& group = *operand.part.group;
  if (!makes_new || group.placement().shard().world_size() == 1) return false;
  const auto found = find_rows(*operand.tensor, group.slots()[operand.part.slot]);
  return found && found->dim != 0;
}

bool is_part_of_rows(const MarkedOperand& operand) {
  const auto& [group, slot, kind] = operand.part;
  if (kind == PartKind::kWhole || kind == PartKind::kResult || operand.is_parameter) return false;
  if (find_rows(*operand.tensor, group->slots()[slot])) return false;
  const auto numel = group->slots()[slot].rows_numel();
  return numel == 0 || operand.tensor->numel() != numel;
}

// Nothing had shown the node that runs whole parameters. If the observer should have, the node may have taken the sizes
// of rows for those of the parameter.
void require_not_observed(const MarkedOperand& operand) {
  const auto node = torch::autograd::get_current_node();
  const auto& group = *operand.part.group;
  require(!node || !leads_to(*node, operand.tensor->unsafeGetTensorImpl()), group.where("backward"),
          "expected LibTorch's observers on as when the forward scope opened, found them off "
          "(at::RecordFunctionGuard, at::clearCallbacks): fsdp did not see the node of an operator on '",
          group.name(),
          "' begin. Turn them off around the scope and backward or around neither, and remove callbacks one by one; "
          "then call reset_iter_state()");
}

// In backward the group shows whole parameters first.
void show_whole_in_backward(MarkedOperand& operand) {
  auto& group = *operand.part.group;
  if (group.is_in_hook() || (operand.part.kind != PartKind::kWhole && !operand.is_parameter)) return;
  if (enter_backward(group)) require_not_observed(operand);
  operand.part.kind = PartKind::kWhole;
}

Access describe(const OperatorCall& call, const MarkedOperand& operand) {
  const auto& traits = call.traits;
  const auto& group = *operand.part.group;
  Access access;
  access.op = traits.kind;
  access.part = operand.part.kind;
  access.is_parameter = operand.is_parameter;
  access.is_part_of_rows = is_part_of_rows(operand);
  access.is_first = operand.argument == 0;
  access.writes = traits.writes(operand.argument);
  access.random = traits.random;
  if (access.part != PartKind::kWhole) {
    access.selects_rows = selects_rows(call, operand);
    access.reorders_rows = reorders_rows(call, operand);
  }
  access.inside = group.is_inside();
  access.summoned = group.summon_depth > 0;
  access.local_rows = group.local_rows_depth > 0;
  if (access.part != PartKind::kWhole || access.summoned)  // no rule asks otherwise
    access.recording = at::GradMode::is_enabled() && operand.tensor->requires_grad();
  return access;
}

// What is found out about an operator's operands before anything happens.
struct Plan {
  Replacements replacements = {};
  ComputeDtype compute = {};
  const at::Tensor* misfit = nullptr;  // of the operand that was judged last
};

Verdict judge_operand(const OperatorCall& call, const MarkedOperand& operand, std::span<const MarkedOperand> operands,
                      Plan& plan) {
  const auto kind = call.traits.kind;
  const bool writes = call.traits.written_arguments != 0;
  auto access = describe(call, operand);
  if (access.part == PartKind::kWhole && kind != OperatorKind::kReplace) return judge(access);
  const bool is_element_wise = kind == OperatorKind::kPointwise || kind == OperatorKind::kForeach ||
                               (kind == OperatorKind::kCopy && writes);  // not x.to(parameter)
  if (is_element_wise && !access.local_rows) {
    std::tie(access.fit, plan.misfit) = fit_of_others(call, operand, operands, plan.replacements);
  } else if (kind == OperatorKind::kReplace || (kind == OperatorKind::kCopy && !writes && access.is_first)) {
    access.conversion = conversion_of(call.op, call.arguments);
  }
  return judge(access);
}

// The operator reads, or makes a view, while gradients are off, perhaps inside a custom Function. Its node leads to a
// parameter that trains and that it got itself. If the parameter is frozen, or the function got a view or a detached
// one, nothing tells that it will read again. What it makes of a view looks like what it makes of the parameter.
bool may_be_hidden(const MarkedOperand& operand) {
  const auto& [group, slot, kind] = operand.part;
  if (!group->scope || !group->scope->records || group->scope->is_hidden || group->summon_depth > 0) return false;
  const auto& parameter = group->slots()[slot];
  const auto& tensor = *operand.tensor;
  const bool is_recorded = torch::autograd::impl::grad_fn_unsafe(tensor) != nullptr;  // a view
  const bool is_of_it = parameter.is(tensor.is_view() ? at::Tensor(tensor._base()) : tensor);
  return is_recorded || !parameter.requires_grad() || !is_of_it;
}

[[gnu::cold]] void note_unrecorded_read(const MarkedOperand& operand) {
  auto& group = *operand.part.group;
  group.slots()[operand.part.slot].was_read_unrecorded = true;
  if (may_be_hidden(operand)) group.scope->is_hidden = true;
}

// A verdict other than to pass and to read.
void carry_out(Verdict verdict, const OperatorCall& call, const MarkedOperand& operand, Plan& plan) {
  auto& group = *operand.part.group;
  switch (verdict) {
    case Verdict::kWriteRows:
      group.require_no_waiting_gradient(operand.part.slot, call.op.operator_name().name);
      group.note_write(group.local_rows_depth > 0 ? WriteKind::kThisRank : WriteKind::kEveryRank, operand.part.slot);
      return;
    case Verdict::kPrintRows:
      plan.replacements.push_back({operand, rows_to_print(operand)});
      return;
    default:
      refuse(call.op, operand.part, *operand.tensor, plan.misfit, verdict);
  }
}

// Judges the operands of one process group and carries the verdicts out. The groups that are read become whole
// together, so that none of them is freed for another. Those of a second process group follow, on every rank alike.
void prepare_on(RankState& rank, const OperatorCall& call, std::span<MarkedOperand> operands,
                OperandGroups& takes_whole, RowResults& results, Plan& plan) {
  c10::SmallVector<ParamGroup*, 2> reads;
  std::lock_guard lock(rank.mutex);
  const bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
  const bool is_unrecorded = !in_backward && !at::GradMode::is_enabled();
  if (in_backward)
    for (auto& operand : operands) show_whole_in_backward(operand);
  for (const auto& operand : operands) {
    const auto verdict = judge_operand(call, operand, operands, plan);
    auto* group = operand.part.group.get();
    if (verdict == Verdict::kReadWhole) {
      plan.compute.add(*group, group->slots()[operand.part.slot]);
      if (is_unrecorded) note_unrecorded_read(operand);
      if (std::ranges::find(reads, group) == reads.end()) reads.push_back(group);
    } else if (verdict != Verdict::kPass) {
      carry_out(verdict, call, operand, plan);
    } else if (is_unrecorded && call.traits.kind == OperatorKind::kView && operand.part.kind == PartKind::kWhole) {
      if (may_be_hidden(operand)) group->scope->is_hidden = true;
    }
    if (operand.part.kind != PartKind::kWhole && verdict != Verdict::kPrintRows)
      results.add(call, operand, operand.part);
  }
  auto& count = rank.intercepted_operators;  // only who has the lock writes it
  count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  for (auto& operand : operands)
    if (operand.part.kind == PartKind::kWhole)
      takes_whole.add_once(std::move(operand.part.group),
                           operand.is_parameter ? operand.tensor->unsafeGetTensorImpl() : nullptr);
  if (!reads.empty()) read_groups({reads.begin(), reads.end()});
}

}  // namespace

void OperandGroups::add_once(std::shared_ptr<ParamGroup> group, const at::TensorImpl* parameter) {
  if (parameter != nullptr) parameters_.push_back({parameter, group.get()});
  if (std::ranges::find(groups_, group) != groups_.end()) return;
  group->pins.add();
  scopes_know_ &= !group->scope || group->scope->recorded;
  observers_on_ &= group->scope && group->scope->observed;
  groups_.push_back(std::move(group));
}

// Whether backward's observer shows the node whole parameters of the group, so that it needs no hook.
bool OperandGroups::is_observed(const torch::autograd::Node& node, const ParamGroup* group) const {
  return observers_on_ && std::ranges::any_of(parameters_, [&](const Parameter& parameter) {
           return parameter.group == group && leads_to(node, parameter.tensor);
         });
}

void OperandGroups::hook(const at::Tensor& result, uint64_t first) {
  // Not grad_fn(), which looks whether something wrote to the base of a view since.
  auto* node = torch::autograd::impl::grad_fn_unsafe(result);
  if (node == nullptr || node == last_node_ || node->sequence_nr() < first) return;
  last_node_ = node;
  for (const auto& group : groups_)
    if (!is_observed(*node, group.get())) hook_node(*node, group);
  if (std::exchange(scopes_know_, true)) return;
  for (const auto& group : groups_) {
    std::lock_guard lock(group->rank_state().mutex);
    if (group->scope) group->scope->recorded = true;
  }
}

void prepare(const OperatorCall& call, OperandGroups& takes_whole, RowResults& results) {
  auto operands = marked_operands(call);
  Plan plan;
  for (auto* begin = operands.begin(); begin != operands.end();) {
    auto& rank = begin->part.group->rank_state();
    auto* end = std::partition(begin, operands.end(), [&](const MarkedOperand& operand) {
      return &operand.part.group->rank_state() == &rank;
    });
    prepare_on(rank, call, {begin, end}, takes_whole, results, plan);
    begin = end;
  }
  if (call.traits.written_arguments != 0 && !results.empty()) results.add_written(call);
  plan.compute.cast_others(call, plan.replacements);
  if (!plan.replacements.empty()) replace(call.arguments, plan.replacements);
}

}  // namespace fsdp::runtime
