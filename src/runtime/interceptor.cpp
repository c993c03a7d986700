#include "runtime/interceptor.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/core/check.h"
#include "runtime/backward.h"
#include "runtime/compat.h"
#include "runtime/operator_traits.h"
#include "runtime/row_operands.h"

namespace fsdp::runtime {
namespace {

struct MarkedOperand : OperatorCall::Operand {
  Part part;
  bool is_parameter = false;  // true for the parameter itself, false for a view of it
};

// Returns an ordinary copy of the rows for printing. A backward through the copy throws UsageError.
at::Tensor rows_to_print(const MarkedOperand& operand) {
  const c10::impl::ExcludeDispatchKeyGuard own_operators(kShardedKey);
  const auto& group = *operand.part.group;
  const auto& name = operand.part.group->slots()[operand.part.slot].name();
  const auto place = group.where("aten::to") + noun_of(operand.part.kind) + name;
  TORCH_WARN_ONCE(place,
                  "' is sharded, and outside a forward scope it is this rank's rows, so only these are printed. For "
                  "the whole value call fsdp::full_tensor(p) on every rank. This warning appears once");
  auto copy = operand.tensor->detach().clone();
  if (at::GradMode::is_enabled() && operand.tensor->requires_grad())
    copy.requires_grad_().register_hook([place](const at::Tensor&) {
      throw UsageError(place +
                       "' is sharded, and its rows were copied to be printed: no gradient reaches the parameter "
                       "through this copy. " +
                       ways_out(Verdict::kRefuseOutsideScope));
    });
  return copy;
}

// Returns true if the operator selects some of the tensor's rows by index. Such an index counts this rank's rows, so it
// means a different row on every rank.
bool selects_rows(const OperatorCall& call, const MarkedOperand& operand) {
  if (!call.traits.selecting_argument) return false;
  const auto& tensor = *operand.tensor;
  const auto& rows = operand.part.group->slots()[operand.part.slot].rows_tensor;
  // In a view, such as a transposed one, the rows can lie along a dim other than the first.
  if (tensor.dim() != rows.dim() || tensor.dim() == 0 || tensor.size(0) != rows.size(0) ||
      tensor.stride(0) != rows.stride(0))
    return true;
  const size_t argument = *call.traits.selecting_argument;
  if (argument >= call.arguments.size() || !call.arguments[argument].isInt()) return true;
  const auto dim = call.arguments[argument].toInt();
  return dim == 0 || dim == -tensor.dim();
}

// Returns true if the operator makes a new tensor from an operand whose rows do not lie along its first dim. In
// results, rows must lie along the first dim (see Note [Results of rows]).
bool reorders_rows(const OperatorCall& call, const MarkedOperand& operand) {
  using enum OperatorKind;
  const auto kind = call.traits.kind;
  const bool writes = call.traits.written_arguments != 0;
  const bool makes_new = is_one_of(kind, {kViewOrCopy, kClone}) ||
                         (kind == kCopy && !writes && operand.argument == 0) ||
                         (is_one_of(kind, {kPointwise, kForeach}) && !writes);
  auto& group = *operand.part.group;
  if (!makes_new || group.placement().shard().world_size() == 1) return false;
  return !has_rows_first(*operand.tensor, group.slots()[operand.part.slot]);
}

bool is_part_of_rows(const MarkedOperand& operand) {
  const auto& [group, slot, kind] = operand.part;
  if (kind == PartKind::kWhole || kind == PartKind::kResult || operand.is_parameter) return false;
  if (find_rows(*operand.tensor, group->slots()[slot])) return false;
  const auto numel = group->slots()[slot].rows_numel();
  return numel == 0 || operand.tensor->numel() != numel;
}

// Lets the graph task enter the group of a parameter. Throws UsageError if the observer should have done so before the
// current node began, because the node may have taken the rows' sizes for the parameter's.
void show_whole_in_backward(RankState& rank, MarkedOperand& operand) FSDP_REQUIRES(rank.mutex) {
  auto& group = *operand.part.group;
  if (group.is_in_hook() || (operand.part.kind != PartKind::kWhole && !operand.is_parameter)) return;
  if (enter_backward(rank, group))
    if (const auto node = torch::autograd::get_current_node(); node && leads_to(*node, group))
      require(false, group.where("backward"),
              "LibTorch's observers are off (at::RecordFunctionGuard, at::clearCallbacks), so fsdp did not hear "
              "that the backward of an operator on '",
              group.name(),
              "' begins. Leave observers on during backward, and remove callbacks with at::removeCallback; then call "
              "reset_iter_state()");
  operand.part.kind = PartKind::kWhole;
}

// The changes that the interceptor makes to an operator's operands before the operator runs.
struct Plan {
  std::vector<Replacement> replacements = {};
  ComputeDtype compute = {};
  const at::Tensor* misfit = nullptr;  // the other operand that does not fit the operand that was judged last
};

Verdict judge_operand(const OperatorCall& call, const MarkedOperand& operand, Plan& plan) {
  using enum OperatorKind;
  const auto& traits = call.traits;
  const auto& group = *operand.part.group;
  const bool is_whole = operand.part.kind == PartKind::kWhole, is_summoned = group.summon_depth > 0;
  Access access{
      .op = traits.kind,
      .part = operand.part.kind,
      .is_parameter = operand.is_parameter,
      .is_part_of_rows = is_part_of_rows(operand),
      .selects_rows = !is_whole && selects_rows(call, operand),
      .reorders_rows = !is_whole && reorders_rows(call, operand),
      .is_first = operand.argument == 0,
      .writes = traits.writes(operand.argument),
      .random = traits.random,
      // For whole parameters outside summon_full_params no rule depends on `recording`.
      .recording = (!is_whole || is_summoned) && at::GradMode::is_enabled() && operand.tensor->requires_grad(),
      .inside = group.is_inside(),
      .summoned = is_summoned,
      .local_rows = group.local_rows_depth > 0};
  if (is_whole && traits.kind != kReplace) return judge(access);
  const bool writes = traits.written_arguments != 0;
  const bool is_element_wise = is_one_of(traits.kind, {kPointwise, kForeach}) || (traits.kind == kCopy && writes);
  if (is_element_wise && !access.local_rows)
    std::tie(access.fit, plan.misfit) = fit_of_others(call, operand, operand.part, plan.replacements);
  else if (traits.kind == kReplace || (traits.kind == kCopy && !writes && access.is_first))
    access.conversion = conversion_of(call.op, call.arguments);
  return judge(access);
}

// The groups whose whole parameters an operator takes. While this object lives, other threads do not free the groups'
// memory.
class OperandGroups {
 public:
  OperandGroups() = default;
  OperandGroups(const OperandGroups&) = delete;
  OperandGroups& operator=(const OperandGroups&) = delete;
  ~OperandGroups() {
    for (const auto& group : groups_) group->pins.remove();
  }
  /// Adds and pins the group of an operand. The caller holds the rank's lock.
  void add_once(std::shared_ptr<ParamGroup> group) {
    if (std::ranges::find(groups_, group) != groups_.end()) return;
    group->pins.add();
    scopes_know_ &= !group->scope || group->scope->recorded;
    groups_.push_back(std::move(group));
  }
  bool empty() const { return groups_.empty(); }
  /// If autograd recorded the operator that returned `result`, makes sure that the groups are entered before the node
  /// runs in backward. A node whose sequence number is below `first` belongs to an earlier operator and is left alone:
  /// some operators, such as type_as, return an operand.
  void hook(const at::Tensor& result, uint64_t first) {
    // grad_fn() would first check whether an operator has written to the base of a view.
    auto* node = torch::autograd::impl::grad_fn_unsafe(result);
    if (node == nullptr || node == last_node_ || node->sequence_nr() < first) return;
    last_node_ = node;
    for (const auto& group : groups_)
      if (!leads_to(*node, *group)) hook_node(*node, group);
    if (std::exchange(scopes_know_, true)) return;
    for (const auto& group : groups_) {
      const MutexLock lock(group->rank_state().mutex);
      if (group->scope) group->scope->recorded = true;
    }
  }

 private:
  c10::SmallVector<std::shared_ptr<ParamGroup>, 2> groups_;
  const void* last_node_ = nullptr;
  bool scopes_know_ = true;  // false if some group's scope has ScopeRecord::recorded == false
};

// Judges the operands of one process group and carries the verdicts out. The groups that the operator reads are
// unsharded together, so that reading one of them does not free another. `prepare` calls the function for one process
// group after the other, in the same order on every rank.
void prepare_on(RankState& rank, const OperatorCall& call, std::span<MarkedOperand> operands,
                OperandGroups& takes_whole, RowResults& results, Plan& plan) {
  c10::SmallVector<ParamGroup*, 2> reads;
  const MutexLock lock(rank.mutex);
  const bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
  const bool is_unrecorded = !in_backward && !at::GradMode::is_enabled();
  if (in_backward)
    for (auto& operand : operands) show_whole_in_backward(rank, operand);
  for (const auto& operand : operands) {
    const auto verdict = judge_operand(call, operand, plan);
    auto* group = operand.part.group.get();
    switch (verdict) {
      case Verdict::kPass:
        break;
      case Verdict::kReadWhole:
        plan.compute.add(group->slots()[operand.part.slot]);
        if (is_unrecorded) group->slots()[operand.part.slot].was_read_unrecorded = true;
        if (std::ranges::find(reads, group) == reads.end()) reads.push_back(group);
        break;
      case Verdict::kWriteRows:
        group->require_no_waiting_gradient(operand.part.slot, call.op.operator_name().name);
        group->prepare_write(group->local_rows_depth > 0 ? WriteKind::kThisRank : WriteKind::kEveryRank,
                             operand.part.slot);
        break;
      case Verdict::kPrintRows:
        plan.replacements.push_back({operand, rows_to_print(operand)});
        break;
      default:
        refuse(call.op, operand.part, *operand.tensor, plan.misfit, verdict);
    }
    if (operand.part.kind != PartKind::kWhole && verdict != Verdict::kPrintRows)
      results.add(call, operand, operand.part);
  }
  auto& count = rank.intercepted_operators;  // written only by the thread that holds the lock
  count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  for (auto& operand : operands)
    if (operand.part.kind == PartKind::kWhole) takes_whole.add_once(std::move(operand.part.group));
  if (!reads.empty()) read_groups(rank, {reads.begin(), reads.end()});
}

// Prepares an operator that takes sharded tensors. Judges what it does with rows, gradients and whole parameters,
// unshards the groups that it reads, and notes the rows that it writes, the groups whose whole parameters it takes and
// the results that will have rows. Replaces arguments on the stack, e.g. those of whole sizes by this rank's rows.
// Collective if a group must be gathered. Throws UsageError if the operator would mean something different on this
// rank's rows. Any thread may call it.
void prepare(const OperatorCall& call, OperandGroups& takes_whole, RowResults& results) {
  c10::SmallVector<MarkedOperand, 4> operands;
  for (const auto& operand : call.tensors) {
    if (!is_marked(*operand.tensor->unsafeGetTensorImpl())) continue;
    if (auto part = part_of(*operand.tensor)) {
      bool is_parameter = part->group->slots()[part->slot].is(*operand.tensor);
      operands.push_back({operand, std::move(*part), is_parameter});
    }
  }
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
  if (!plan.replacements.empty()) own_lists(call.arguments);
  for (const auto& [operand, tensor] : plan.replacements)
    put(call.arguments[operand.argument], operand.element, tensor);
}

void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto traits = operator_traits(op);
  const auto arguments = std::span(*stack).last(schema.arguments().size());
  const auto run = [&] {
    const c10::impl::ExcludeDispatchKeyGuard unseen(kShardedKey);
    op.redispatchBoxed(keys & kBelowSharded, stack);
    return std::span(*stack).last(schema.returns().size());
  };
  if (const auto mark = among_results(traits, arguments)) {
    const auto returned = run();
    if (*mark) visit_tensors(returned, [&](const at::Tensor& tensor, size_t, size_t) { mark_as_rows(tensor, *mark); });
    return;
  }
  OperatorCall call{.op = op, .traits = traits, .arguments = arguments};
  visit_tensors(call.arguments, [&](const at::Tensor& tensor, size_t i, size_t element) {
    call.tensors.push_back({&tensor, i, element});
  });
  OperandGroups groups;
  RowResults results;
  prepare(call, groups, results);
  const uint64_t first_node = at::sequence_number::peek();
  const auto returned = run();
  if (!results.empty()) {
    if (traits.written_arguments == 0)
      visit_tensors(returned, [&](const at::Tensor& tensor, size_t, size_t j) { results.mark_made(tensor, j); });
    results.mark_written();
  }
  if (groups.empty() || !at::GradMode::is_enabled()) return;
  visit_tensors(returned, [&](const at::Tensor& tensor, size_t, size_t) { groups.hook(tensor, first_node); });
}

std::atomic<bool> is_installed = false;

}  // namespace

bool another_copy_intercepts() {
  return !is_installed && c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kShardedKey);
}

void install_interceptor() {
  // This torch::Library is never destroyed: operators on tensors that outlive main() still call the interceptor.
  [[maybe_unused]] static const auto* library = [] {
    require(!another_copy_intercepts(),
            "fsdp::fully_shard: a different copy of fsdp has already sharded a model in this process, for example if "
            "both the program and a library that it opened contain fsdp. The two copies do not know each other's "
            "parameters: link fsdp into one shared library that both use");
    auto* fallback = new torch::Library(torch::Library::IMPL, "_", kShardedKey, __FILE__, __LINE__);
    fallback->fallback(torch::CppFunction::makeFromBoxedFunction<&intercept>());
    is_installed = true;
    return fallback;
  }();
  observe_backward_nodes();
  observe_written_tensors();
}

}  // namespace fsdp::runtime
