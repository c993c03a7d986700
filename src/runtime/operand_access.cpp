#include "runtime/operand_access.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "comm/check.h"
#include "runtime/backward_hooks.h"
#include "runtime/compat.h"
#include "runtime/registry.h"
#include "runtime/scope.h"

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
    if (!is_marked(*operand.tensor->unsafeGetTensorImpl()) || !operand.tensor->has_storage()) continue;
    if (auto part = registry().find(operand.tensor->storage().unsafeGetStorageImpl())) {
      bool is_parameter = part->group->slots()[part->slot].is(*operand.tensor);
      marked.push_back({operand, std::move(*part), is_parameter});
    }
  }
  return marked;
}

// Whether each tensor operand has `sizes` or one element.
bool all_have_sizes(const OperatorCall& call, c10::IntArrayRef sizes) {
  return std::ranges::all_of(call.tensors, [&](const OperatorCall::Operand& operand) {
    return operand.tensor->sizes() == sizes || operand.tensor->numel() == 1;
  });
}

// Whether in lists, where element i belongs to element i of the others, marked tensors meet equal sizes or one element.
bool lists_fit(const OperatorCall& call) {
  c10::SmallVector<c10::ArrayRef<c10::IValue>, 4> lists;
  for (const auto& argument : call.arguments)
    if (argument.isTensorList()) lists.push_back(argument.toListRef());
  for (const auto& list : lists)
    for (size_t i = 0; i < list.size(); ++i) {
      const auto& tensor = list[i].toTensor();
      if (!tensor.defined() || !is_marked(*tensor.unsafeGetTensorImpl())) continue;
      for (const auto& other : lists)
        if (i < other.size() && other[i].toTensor().sizes() != tensor.sizes() && other[i].toTensor().numel() != 1)
          return false;
    }
  return true;
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

bool is_part_of_rows(const MarkedOperand& operand) {
  const auto& [group, slot, kind] = operand.part;
  return kind != PartKind::kWhole && operand.tensor->numel() != group->slots()[slot].rows_numel();
}

std::string expected(const MarkedOperand& operand, Verdict verdict) {
  if (verdict == Verdict::kRefuseReplace) return "a parameter that is not sharded";
  if (operand.part.kind != PartKind::kWhole)
    return c10::str("a whole tensor of sizes ", operand.part.group->slots()[operand.part.slot].sizes());
  if (verdict == Verdict::kRefuseOutsideScope) return "an open forward scope";
  if (verdict == Verdict::kRefuseRecording) return "a forward scope or a torch::NoGradGuard";
  return "this rank's rows";
}

std::string found(const MarkedOperand& operand) {
  const auto& slot = operand.part.group->slots()[operand.part.slot];
  if (operand.part.kind == PartKind::kWhole) return c10::str("the whole parameter, sizes ", slot.sizes());
  auto [first, count] = slot.rows();
  return c10::str(operand.tensor->sizes(), ", this rank's rows ", first, " to ", first + count);
}

// As the user called it.
std::string name_of(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name().name;
  return name == "aten::_has_compatible_shallow_copy_type" ? "aten::set_data" : name;
}

[[noreturn]] void refuse(const c10::OperatorHandle& op, const MarkedOperand& operand, Verdict verdict) {
  const char* noun = operand.part.kind == PartKind::kGradient ? "the gradient of parameter '" : "parameter '";
  auto& group = *operand.part.group;
  throw UsageError(group.where(name_of(op)) + noun + group.slots()[operand.part.slot].name() +
                   "' is sharded (expected " + expected(operand, verdict) + ", found " + found(operand) +
                   "): " + ways_out(verdict));
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

// The verdict about one operand. In backward the group shows whole parameters first.
Verdict judge_operand(const OperatorCall& call, MarkedOperand& operand, bool in_backward, bool lists_match) {
  const auto& traits = call.traits;
  auto& group = *operand.part.group;
  if (in_backward && operand.part.kind != PartKind::kGradient &&
      (operand.is_parameter || operand.part.kind == PartKind::kWhole)) {
    if (group.rank_state().enter_backward(group)) require_not_observed(operand);
    operand.part.kind = PartKind::kWhole;
  }
  Access access;
  access.op = traits.kind;
  access.part = operand.part.kind;
  access.is_parameter = operand.is_parameter;
  access.is_part_of_rows = is_part_of_rows(operand);
  access.is_first = operand.argument == 0;
  access.writes = traits.writes(operand.argument);
  access.random = traits.random;
  if (access.part != PartKind::kWhole) {
    bool is_copy_into = traits.kind == OperatorKind::kCopy && traits.written_arguments != 0;  // not x.to(parameter)
    bool sizes_matter = traits.kind == OperatorKind::kPointwise || is_copy_into;
    access.same_sizes = lists_match && (!sizes_matter || all_have_sizes(call, operand.tensor->sizes()));
    access.selects_rows = selects_rows(call, operand);
  }
  access.inside = group.is_inside();
  access.summoned = group.summon_depth > 0;
  access.local_rows = group.local_rows_depth > 0;
  if (access.part != PartKind::kWhole || access.summoned)  // no rule asks otherwise
    access.recording = at::GradMode::is_enabled() && operand.tensor->requires_grad();
  return judge(access);
}

// The operator reads while gradients are off, perhaps inside a custom Function. Its node leads to a parameter if that
// trains; if the parameter is frozen, or the function got a view, nothing tells that it will read again.
bool may_be_hidden(const MarkedOperand& operand) {
  const auto& [group, slot, kind] = operand.part;
  if (!group->scope || !group->scope->records || group->scope->is_hidden || group->summon_depth > 0) return false;
  const bool is_recorded = torch::autograd::impl::grad_fn_unsafe(*operand.tensor) != nullptr;  // a view
  return is_recorded || !group->slots()[slot].requires_grad();
}

// Judges the operands of one process group and carries the verdicts out. The groups that are read become whole
// together, so that none of them is freed for another. Those of a second process group follow, on every rank alike.
void prepare_on(RankState& rank, const OperatorCall& call, std::span<MarkedOperand> operands, bool lists_match,
                OperandGroups& takes_whole) {
  bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
  const bool is_unrecorded = !in_backward && !at::GradMode::is_enabled();
  c10::SmallVector<ParamGroup*, 2> reads;
  std::lock_guard lock(rank.mutex);
  ++rank.intercepted_operators;
  for (auto& operand : operands) {
    auto& group = operand.part.group;
    auto verdict = judge_operand(call, operand, in_backward, lists_match);
    if (verdict == Verdict::kReadWhole) {
      if (is_unrecorded && may_be_hidden(operand)) group->scope->is_hidden = true;
      if (std::ranges::find(reads, group.get()) == reads.end()) reads.push_back(group.get());
    } else if (verdict == Verdict::kWriteRows) {
      group->require_no_waiting_gradient(operand.part.slot, call.op.operator_name().name);
      group->note_write(group->local_rows_depth > 0 ? WriteKind::kThisRank : WriteKind::kEveryRank, operand.part.slot);
    } else if (verdict != Verdict::kPass) {
      refuse(call.op, operand, verdict);
    }
    if (operand.part.kind != PartKind::kWhole) continue;
    takes_whole.add_once(std::move(group), operand.is_parameter ? operand.tensor->unsafeGetTensorImpl() : nullptr);
  }
  if (!reads.empty()) rank.read({reads.begin(), reads.end()});
}

}  // namespace

void OperandGroups::add_once(std::shared_ptr<ParamGroup> group, const at::TensorImpl* parameter) {
  if (parameter != nullptr) parameters_.push_back({parameter, group.get()});
  if (std::ranges::find(groups_, group) != groups_.end()) return;
  ++group->pins;
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

void OperandGroups::hook(const at::Tensor& result) {
  // Not grad_fn(), which looks whether something wrote to the base of a view since.
  auto* node = torch::autograd::impl::grad_fn_unsafe(result);
  if (node == nullptr || node == last_node_) return;
  last_node_ = node;
  for (const auto& group : groups_)
    if (!is_observed(*node, group.get())) hook_node(*node, group);
  if (std::exchange(scopes_know_, true)) return;
  for (const auto& group : groups_) {
    std::lock_guard lock(group->rank_state().mutex);
    if (group->scope) group->scope->recorded = true;
  }
}

void prepare(const OperatorCall& call, OperandGroups& takes_whole) {
  auto operands = marked_operands(call);
  if (operands.empty()) return;
  bool lists_match = call.traits.kind != OperatorKind::kForeach || lists_fit(call);
  for (auto* begin = operands.begin(); begin != operands.end();) {
    auto& rank = begin->part.group->rank_state();
    auto* end = std::partition(begin, operands.end(), [&](const MarkedOperand& operand) {
      return &operand.part.group->rank_state() == &rank;
    });
    prepare_on(rank, call, {begin, end}, lists_match, takes_whole);
    begin = end;
  }
}

}  // namespace fsdp::runtime
