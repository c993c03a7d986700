#include "runtime/interceptor.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include <algorithm>
#include <span>
#include <utility>

#include "comm/check.h"
#include "runtime/backward_hooks.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"
#include "runtime/registry.h"
#include "runtime/scope.h"

namespace fsdp::runtime {
namespace {

// A marked operand of the current operator.
struct Operand {
  const at::Tensor* tensor;  // on the stack
  size_t argument;
  Part part;
};
using Operands = c10::SmallVector<Operand, 4>;

template <class Visit>
void visit_tensors(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (const auto& tensor = value.toTensor(); tensor.defined()) visit(tensor);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) visit_tensors(element, visit);
  }
}

Operands marked_operands(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  Operands operands;
  size_t count = op.schema().arguments().size(), begin = stack.size() - count;
  for (size_t i = 0; i < count; ++i)
    visit_tensors(stack[begin + i], [&](const at::Tensor& tensor) {
      if (!is_marked(*tensor.unsafeGetTensorImpl()) || !tensor.has_storage()) return;
      if (auto part = registry().find(tensor.storage().unsafeGetStorageImpl()))
        operands.push_back({&tensor, i, std::move(*part)});
    });
  return operands;
}

// Whether each tensor operand has `sizes` or one element.
bool all_have_sizes(const c10::OperatorHandle& op, const torch::jit::Stack& stack, c10::IntArrayRef sizes) {
  bool same = true;
  size_t count = op.schema().arguments().size();
  for (size_t i = stack.size() - count; i < stack.size(); ++i)
    visit_tensors(stack[i], [&](const at::Tensor& tensor) { same &= tensor.sizes() == sizes || tensor.numel() == 1; });
  return same;
}

// Whether in lists, where element i belongs to element i of the others, marked tensors meet equal sizes or one element.
bool lists_fit(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  c10::SmallVector<c10::ArrayRef<c10::IValue>, 4> lists;
  for (size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i)
    if (stack[i].isTensorList()) lists.push_back(stack[i].toListRef());
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
bool selects_rows(const OperatorTraits& traits, const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                  const Operand& operand) {
  if (!traits.selecting_argument) return false;
  if (*traits.selecting_argument == OperatorTraits::kAllDims) return true;
  const auto& tensor = *operand.tensor;
  const auto& rows = operand.part.group->slots()[operand.part.slot].rows_tensor;
  // In a view, such as a transposed one, rows may be another dimension than the first.
  if (tensor.dim() != rows.dim() || tensor.dim() == 0 || tensor.size(0) != rows.size(0) ||
      tensor.stride(0) != rows.stride(0))
    return true;
  const auto& dim = stack[stack.size() - op.schema().arguments().size() + *traits.selecting_argument];
  return !dim.isInt() || dim.toInt() == 0 || dim.toInt() == -tensor.dim();
}

bool is_part_of_rows(const Operand& operand) {
  const auto& [group, slot, kind] = operand.part;
  return kind != PartKind::kWhole && operand.tensor->numel() != group->slots()[slot].rows_numel();
}

[[noreturn]] void refuse(const c10::OperatorHandle& op, const Operand& operand, Verdict verdict) {
  const auto& slot = operand.part.group->slots()[operand.part.slot];
  const char* noun = operand.part.kind == PartKind::kGradient ? "the gradient of parameter '" : "parameter '";
  std::ostringstream sizes;
  sizes << "expected a whole tensor of sizes " << slot.sizes() << ", found " << operand.tensor->sizes();
  if (operand.part.kind != PartKind::kWhole)
    sizes << ", this rank's rows " << slot.rows().first << " to " << slot.rows().first + slot.rows().count;
  throw UsageError(operand.part.group->where(op.operator_name().name) + noun + slot.name() + "' is sharded (" +
                   sizes.str() + "): " + ways_out(verdict));
}

// The verdict about one operand. In backward the group shows whole parameters first.
Verdict judge_operand(const c10::OperatorHandle& op, const OperatorTraits& traits, const torch::jit::Stack& stack,
                      Operand& operand, bool in_backward, bool lists_match) {
  auto& group = *operand.part.group;
  bool own = group.slots()[operand.part.slot].is(*operand.tensor);
  if (in_backward && operand.part.kind != PartKind::kGradient && (own || operand.part.kind == PartKind::kWhole)) {
    group.rank_state().enter_backward(group);
    operand.part.kind = PartKind::kWhole;
  }
  Access access;
  access.op = traits.kind;
  access.part = operand.part.kind;
  access.is_parameter = own;
  access.is_part_of_rows = is_part_of_rows(operand);
  access.is_first = operand.argument == 0;
  access.writes = traits.writes(operand.argument);
  access.random = traits.random;
  access.recording = at::GradMode::is_enabled() && operand.tensor->requires_grad();
  if (access.part != PartKind::kWhole) {
    bool is_copy_into = traits.kind == OperatorKind::kCopy && traits.written_arguments != 0;  // not x.to(parameter)
    bool sizes_matter = traits.kind == OperatorKind::kPointwise || is_copy_into;
    access.same_sizes = lists_match && (!sizes_matter || all_have_sizes(op, stack, operand.tensor->sizes()));
    access.selects_rows = selects_rows(traits, op, stack, operand);
  }
  access.inside = group.is_inside();
  access.summoned = group.summon_depth > 0;
  access.local_rows = group.local_rows_depth > 0;
  return judge(access);
}

// The groups whose whole parameters an operator takes. While it computes, other threads of the rank leave their memory
// alone.
class OperandGroups {
 public:
  OperandGroups() = default;
  OperandGroups(const OperandGroups&) = delete;
  OperandGroups& operator=(const OperandGroups&) = delete;
  ~OperandGroups() {
    for (const auto& group : groups_) --group->pins;
  }
  /// Under the rank's lock.
  void add_once(std::shared_ptr<ParamGroup> group) {
    if (std::find(groups_.begin(), groups_.end(), group) != groups_.end()) return;
    ++group->pins;
    scopes_know_ &= !group->scope || group->scope->recorded;
    groups_.push_back(std::move(group));
  }
  auto begin() const { return groups_.begin(); }
  auto end() const { return groups_.end(); }
  bool empty() const { return groups_.empty(); }

  /// Autograd recorded the operator.
  void tell_scopes() {
    if (std::exchange(scopes_know_, true)) return;
    for (const auto& group : groups_) {
      std::lock_guard lock(group->rank_state().mutex);
      if (group->scope) group->scope->recorded = true;
    }
  }

 private:
  c10::SmallVector<std::shared_ptr<ParamGroup>, 2> groups_;
  bool scopes_know_ = true;
};

// Judges the operands of one process group and carries the verdicts out. The groups that are read become whole
// together, so that none of them is freed for another. Those of a second process group follow, on every rank alike.
void prepare(const c10::OperatorHandle& op, const OperatorTraits& traits, const torch::jit::Stack& stack,
             std::span<Operand> operands, bool lists_match, OperandGroups& takes_whole) {
  auto& rank = operands.front().part.group->rank_state();
  bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
  c10::SmallVector<ParamGroup*, 2> reads;
  std::lock_guard lock(rank.mutex);
  ++rank.intercepted_operators;
  for (auto& operand : operands) {
    auto& group = operand.part.group;
    auto verdict = judge_operand(op, traits, stack, operand, in_backward, lists_match);
    if (verdict == Verdict::kReadWhole) {
      if (std::find(reads.begin(), reads.end(), group.get()) == reads.end()) reads.push_back(group.get());
    } else if (verdict == Verdict::kWriteRows) {
      if (group->slots()[operand.part.slot].arrived_gradient.defined())
        group->require_no_waiting_gradients(op.operator_name().name);
      group->note_write(group->local_rows_depth > 0 ? WriteKind::kThisRank : WriteKind::kEveryRank, operand.part.slot);
    } else if (verdict != Verdict::kPass) {
      refuse(op, operand, verdict);
    }
    if (operand.part.kind == PartKind::kWhole) takes_whole.add_once(std::move(group));
  }
  if (!reads.empty()) rank.read({reads.begin(), reads.end()});
}

// Notes the groups whose whole parameters the operator takes.
void prepare(const c10::OperatorHandle& op, const torch::jit::Stack& stack, OperandGroups& takes_whole) {
  auto operands = marked_operands(op, stack);
  if (operands.empty()) return;
  const auto traits = operator_traits(op);
  bool lists_match = traits.kind != OperatorKind::kForeach || lists_fit(op, stack);
  for (auto* begin = operands.begin(); begin != operands.end();) {
    const auto* rank = &begin->part.group->rank_state();
    auto* end = std::partition(begin, operands.end(),
                               [&](const Operand& operand) { return &operand.part.group->rank_state() == rank; });
    prepare(op, traits, stack, {begin, end}, lists_match, takes_whole);
    begin = end;
  }
}

// Autograd recorded the operator: its node shows whole parameters before it runs backward.
void hook_results(const c10::OperatorHandle& op, const torch::jit::Stack& stack, OperandGroups& groups) {
  if (!at::GradMode::is_enabled()) return;
  const void* last_node = nullptr;
  for (size_t i = stack.size() - op.schema().returns().size(); i < stack.size(); ++i)
    visit_tensors(stack[i], [&](const at::Tensor& result) {
      auto* node = result.grad_fn().get();
      if (node == nullptr || node == last_node) return;
      last_node = node;
      for (const auto& group : groups) hook_node(*node, group);
      groups.tell_scopes();
    });
}

void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  OperandGroups groups;
  prepare(op, *stack, groups);
  {
    c10::impl::ExcludeDispatchKeyGuard below(kShardedKey);
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kShardedKey), stack);
  }
  if (!groups.empty()) hook_results(op, *stack, groups);
}

}  // namespace

void install_interceptor() {
  // Kept for ever: tensors that outlive main() still dispatch.
  static auto* library = [] {
    auto* fallback = new torch::Library(torch::Library::IMPL, "_", kShardedKey, __FILE__, __LINE__);
    fallback->fallback(torch::CppFunction::makeFromBoxedFunction<&intercept>());
    return fallback;
  }();
  static_cast<void>(library);
  observe_backward_nodes();
}

}  // namespace fsdp::runtime
