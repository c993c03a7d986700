#include "runtime/access_rules.h"

#include <optional>

namespace fsdp::runtime {
namespace {

using enum OperatorKind;

Verdict judge_whole(const Access& a) {
  if (a.writes) return a.inside && a.summoned ? Verdict::kReadWhole : Verdict::kRefuseWriteInScope;
  if (is_one_of(a.op, {kDetach, kFactory, kView})) return Verdict::kPass;
  // Backward would gather the rows again and not see what was written to this copy.
  if (a.inside && a.summoned && a.recording) return Verdict::kRefuseRecording;
  return a.inside ? Verdict::kReadWhole : Verdict::kRefuseOutsideScope;
}

// Returns true if the operator does the same to a rank's rows as to the whole parameter, provided that its other
// operands fit.
bool is_row_wise(const Access& a) {
  if (a.op == kPointwise) return !a.is_part_of_rows;
  return is_one_of(a.op, {kView, kViewOrCopy, kClone, kFill, kFused, kCopy, kForeach});
}

// Judges by `fit`. An optimizer that is stepped in a scope sees whole parameters but only the rows of their gradients;
// it also gets kRefuseWriteFromRows.
Verdict judge_fit(const Access& a, Verdict passed) {
  if (a.fit == Fit::kFits || a.fit == Fit::kTakesRows) return passed;
  const bool is_step_in_scope = a.inside && a.part == PartKind::kGradient;
  return a.fit == Fit::kMisfits && !is_step_in_scope ? Verdict::kRefuseOperand : Verdict::kRefuseWriteFromRows;
}

// Judges conversions such as `to`, which Module::to calls for each parameter. Returns nothing if other rules apply.
std::optional<Verdict> judge_conversion(const Access& a) {
  const bool is_lifted = a.local_rows && !a.recording;
  if (a.op != kCopy || !a.is_first || a.writes || is_lifted) return std::nullopt;
  if (a.conversion == Conversion::kPrints) return Verdict::kPrintRows;
  if (!a.is_parameter) return std::nullopt;
  return a.conversion == Conversion::kNothing ? Verdict::kPass : Verdict::kRefuseConvert;
}

Verdict judge_rows(const Access& a) {
  auto passed = a.writes && a.part == PartKind::kRows ? Verdict::kWriteRows : Verdict::kPass;
  if (a.writes && a.inside && a.part == PartKind::kRows) return Verdict::kRefuseWriteInScope;
  const auto refused = a.part == PartKind::kResult ? Verdict::kRefuseResult : Verdict::kRefuseOutsideScope;
  if (a.op == kDetach) return Verdict::kPass;
  if (a.op == kFactory) return a.random && !a.local_rows ? Verdict::kRefuseRandom : Verdict::kPass;
  if (a.op == kClone && a.is_parameter && !a.local_rows) return Verdict::kRefuseConvert;
  if (const auto verdict = judge_conversion(a)) return *verdict;
  if (a.recording) return refused;
  if (a.local_rows) return passed;
  if (a.random) return Verdict::kRefuseRandom;
  if (a.selects_rows && a.part != PartKind::kResult) return Verdict::kRefuseRowsByNumber;
  if (a.selects_rows || a.reorders_rows || (a.writes && a.is_part_of_rows)) return refused;
  return is_row_wise(a) ? judge_fit(a, passed) : refused;
}

}  // namespace

Verdict judge(const Access& a) {
  if (a.op == kMetadata) return Verdict::kPass;
  if (a.op == kReplace && a.conversion == Conversion::kNothing) return Verdict::kPass;
  const bool is_parameter = a.part == PartKind::kRows || a.part == PartKind::kWhole;
  if (a.op == kReplace && a.is_first && is_parameter) return Verdict::kRefuseReplace;
  return a.part == PartKind::kWhole ? judge_whole(a) : judge_rows(a);
}

std::string ways_out(Verdict verdict) {
  switch (verdict) {
    case Verdict::kRefuseOutsideScope:
      return "outside a forward scope a sharded parameter is this rank's rows, so this operator would compute a "
             "different result on every rank. Call the model through its handle, model(...) or model.forward(...): "
             "model->forward(...) opens no scope. If you have only the module, call fsdp::handle_of(module)(...), or "
             "open an fsdp::ForwardScope. For norms, sums and clipping, use fsdp::norm, fsdp::sum and "
             "fsdp::clip_grad_norm_; for LBFGS, use fsdp::optim::LBFGS; for the whole value, use fsdp::full_tensor or "
             "fsdp::summon_full_params; if you mean this rank's rows, open an fsdp::LocalRows (and a "
             "torch::NoGradGuard)";
    case Verdict::kRefuseRowsByNumber:
      return "outside a forward scope a sharded parameter is this rank's rows, so the same index means a different row "
             "on every rank. To read rows by index, take them from auto whole = fsdp::full_tensor(p), on every rank; "
             "to write them, change whole in the same way on every rank and copy it back with p.copy_(whole). If you "
             "mean indices of this rank's rows, open an fsdp::LocalRows (and a torch::NoGradGuard)";
    case Verdict::kRefuseResult:
      return "this tensor has only this rank's rows, so the operator would compute a different result on every rank. "
             "Element-wise operators accept this tensor. For results over all ranks, use fsdp::sum (also along some "
             "dims), fsdp::norm, fsdp::any and fsdp::all; to clip gradients, use fsdp::clip_grad_norm_; for the whole "
             "tensor, e.g. for a matrix product, use fsdp::full_tensor; if you mean this rank's rows, open an "
             "fsdp::LocalRows (and a torch::NoGradGuard)";
    case Verdict::kRefuseOperand:
      return "outside a forward scope a sharded parameter is this rank's rows. Together with the parameter, an "
             "element-wise operator accepts tensors of the rows' sizes, tensors that are broadcast along the rows, and "
             "tensors of the whole parameter's sizes, of which each rank uses its rows. For forward code call the "
             "model through its handle, model(...), or open an fsdp::ForwardScope; for the whole value use "
             "fsdp::full_tensor or fsdp::summon_full_params";
    case Verdict::kRefuseWriteFromRows:
      return "outside a forward scope a sharded parameter is this rank's rows, and its gradient is always this rank's "
             "rows. To write whole values to an ordinary tensor, take them from fsdp::full_tensor(p), on every rank. "
             "An optimizer gets this error if it made state of the whole sizes before fsdp::fully_shard (Adagrad) or "
             "in a scope: construct the optimizer after fully_shard; optimizer.step() belongs after the scope";
    case Verdict::kRefuseRandom:
      return "with equal seeds every rank would draw the same numbers for different rows. Fill parameters before "
             "fsdp::fully_shard, or in fsdp::initialize(model, [&] { ... }), where they have their whole sizes; if you "
             "mean this rank's rows, open an fsdp::LocalRows";
    case Verdict::kRefuseWriteInScope:
      return "inside a scope and in backward the whole parameter is a copy, and a write to it would be lost. Write "
             "after the scope (optimizer.step() belongs after it), or in fsdp::summon_full_params with write_back() "
             "after the scope; after an exception in backward call reset_iter_state() first. " +
             std::string(kOtherValuesInForward);
    case Verdict::kRefuseReplace:
      return "the storage of a sharded parameter is managed by fsdp and can be neither replaced nor converted. Copy "
             "values of the whole sizes or of the rows' sizes with copy_ outside of scopes, or in "
             "fsdp::summon_full_params with write_back(); convert, move, clone and load the model before "
             "fsdp::fully_shard, or with fsdp::to and fsdp::load. " +
             std::string(kOtherValuesInForward);
    case Verdict::kRefuseConvert:
      return "outside a forward scope a sharded parameter is this rank's rows, so a converted, moved or cloned copy "
             "would have only these rows. Convert and move the model with fsdp::to(model, ...), or before "
             "fsdp::fully_shard. Clone the module before fsdp::fully_shard. For the whole value, use "
             "fsdp::full_tensor(p).to(...) on every rank, and for the rows p.detach().to(...) or p.detach().clone()";
    case Verdict::kRefuseRecording:
      return "inside summon_full_params the whole parameters are this rank's own copy, which backward would not reach. "
             "Evaluate the model there under a torch::NoGradGuard, and train in a forward scope";
    default:
      return "";
  }
}

}  // namespace fsdp::runtime
