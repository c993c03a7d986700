#include "runtime/access_rules.h"

namespace fsdp::runtime {
namespace {

bool reads_no_values(OperatorKind op) {
  return op == OperatorKind::kDetach || op == OperatorKind::kFactory || op == OperatorKind::kView;
}

Verdict judge_whole(const Access& a) {
  if (a.writes) return a.inside && a.summoned ? Verdict::kReadWhole : Verdict::kRefuseWriteInScope;
  if (reads_no_values(a.op)) return Verdict::kPass;
  // Backward reads rows, which do not know what was written to this copy.
  if (a.inside && a.summoned && a.recording) return Verdict::kRefuseRecording;
  return a.inside ? Verdict::kReadWhole : Verdict::kRefuseOutsideScope;
}

// Operators that mean the same on a rank's rows as on the whole parameter.
bool is_row_wise(const Access& a) {
  switch (a.op) {
    case OperatorKind::kView:
    case OperatorKind::kViewOrCopy:
    case OperatorKind::kClone:
    case OperatorKind::kFill:
    case OperatorKind::kFused:
      return true;
    case OperatorKind::kCopy:
    case OperatorKind::kForeach:
      return a.same_sizes;
    case OperatorKind::kPointwise:
      return a.same_sizes && !a.is_part_of_rows;
    default:
      return false;
  }
}

Verdict judge_rows(const Access& a) {
  auto passed = a.writes && a.part == PartKind::kRows ? Verdict::kWriteRows : Verdict::kPass;
  if (a.writes && a.inside && a.part == PartKind::kRows) return Verdict::kRefuseWriteInScope;
  if (a.op == OperatorKind::kDetach) return Verdict::kPass;
  if (a.op == OperatorKind::kFactory) return a.random && !a.local_rows ? Verdict::kRefuseRandom : Verdict::kPass;
  if (a.op == OperatorKind::kClone && a.is_parameter && !a.local_rows) return Verdict::kRefuseClone;
  // Module::to and Module::clone(device) convert, then replace.
  if (a.op == OperatorKind::kCopy && a.is_parameter && a.is_first && !a.writes && (a.recording || !a.local_rows))
    return Verdict::kRefuseReplace;
  if (a.recording) return Verdict::kRefuseOutsideScope;
  if (a.local_rows) return passed;
  if (a.random) return Verdict::kRefuseRandom;
  // Rows are numbered locally: p[0] is another row on every rank.
  if (a.selects_rows || (a.writes && a.is_part_of_rows)) return Verdict::kRefuseOutsideScope;
  return is_row_wise(a) ? passed : Verdict::kRefuseOutsideScope;
}

}  // namespace

Verdict judge(const Access& a) {
  if (a.op == OperatorKind::kMetadata) return Verdict::kPass;
  if (a.op == OperatorKind::kReplace && a.is_first && a.part != PartKind::kGradient) return Verdict::kRefuseReplace;
  return a.part == PartKind::kWhole ? judge_whole(a) : judge_rows(a);
}

std::string ways_out(Verdict verdict) {
  switch (verdict) {
    case Verdict::kRefuseOutsideScope:
      return "outside a forward scope a sharded parameter is this rank's rows, and this operator would compute a "
             "different number on them. Call the model through its handle, model(...) or model.forward(...): "
             "model->forward(...) opens no scope. Where there is only a module, fsdp::handle_of(module)(...) is the "
             "same; or open a fsdp::ForwardScope. For norms and clipping use fsdp::clip_grad_norm_; for the whole value use "
             "fsdp::full_tensor or fsdp::summon_full_params; if you mean the rows, open a fsdp::LocalRows "
             "(and a torch::NoGradGuard)";
    case Verdict::kRefuseRandom:
      return "with equal seeds every rank would draw the same numbers for different rows. Fill parameters before "
             "fsdp::fully_shard, or in fsdp::summon_full_params with write_back(); if you mean the rows, open a "
             "fsdp::LocalRows";
    case Verdict::kRefuseWriteInScope:
      return "inside a scope and in backward the whole parameter is a copy, and a write to it would be lost. Write "
             "outside the scope (optimizer.step() belongs after it), or in fsdp::summon_full_params with "
             "write_back(); after an exception in backward call reset_iter_state() first";
    case Verdict::kRefuseReplace:
      return "the storage of a sharded parameter is managed by fsdp and can be neither replaced nor converted. Copy "
             "values with copy_ (rows) or fsdp::summon_full_params and write_back() (whole values); convert, move, "
             "clone and load the model before fsdp::fully_shard. To read the rows use p.detach()";
    case Verdict::kRefuseClone:
      return "a clone of a sharded parameter is a clone of this rank's rows only. Clone the module before "
             "fsdp::fully_shard; for the rows use p.detach().clone(), for the whole value fsdp::full_tensor(p)";
    case Verdict::kRefuseRecording:
      return "whole parameters in summon_full_params are this rank's own copy, which backward would not see. Evaluate "
             "under a torch::NoGradGuard there, and train in a forward scope";
    default:
      return "";
  }
}

}  // namespace fsdp::runtime
