#pragma once
/// \file
/// Pure functions that decide whether an operator may take a sharded tensor, and what must happen first.

#include <cstdint>
#include <string>

#include "runtime/operator_traits.h"

namespace fsdp::runtime {

/// Says on which storage of a parameter a tensor lies. A kResult has its own: see Note [Results of rows].
enum class PartKind : uint8_t { kRows, kWhole, kGradient, kResult };

/// How well the other operands of an element-wise operator fit the rows of a parameter, from best to worst.
enum class Fit : uint8_t {
  kFits,             ///< The other operands have the same rows, or they are broadcast along the rows.
  kTakesRows,        ///< Some operands have the whole parameter's sizes; this rank's rows replace them.
  kMisfits,          ///< Some operand has other sizes or other rows.
  kWrittenFromRows,  ///< The operator writes to an ordinary tensor that has other sizes than the rows.
};

/// Description of what an operator does with one sharded operand.
struct Access {
  OperatorKind op = OperatorKind::kOther;
  PartKind part = PartKind::kRows;
  bool is_parameter = false;     ///< true if the operand is the parameter itself, not a view of it
  bool is_part_of_rows = false;  ///< true if the operand is a view that lacks some elements of the rows
  bool selects_rows = false;     ///< true if the operator returns a view of some rows, chosen by index
  bool reorders_rows = false;    ///< true if the operator makes a copy whose rows may not lie along the first dim
  bool is_first = false;         ///< true if the operand is the first argument, which operators such as `set_` replace
  bool writes = false;           ///< true if the operator writes to the operand
  bool random = false;           ///< true if the operator draws random numbers
  bool recording = false;        ///< true if autograd would record the operator
  Fit fit = Fit::kFits;          ///< how well the other operands of an element-wise operator fit this one
  Conversion conversion = Conversion::kConverts;  ///< set for a kReplace, and for a kCopy that writes nothing
  bool inside = false;                            ///< true if the group has an open scope or an open backward
  bool summoned = false;                          ///< true inside summon_full_params, which allows writes
  bool local_rows = false;                        ///< true if a LocalRows is open on the group
};

/// What the interceptor does about an operand. For each verdict kRefuse... it throws UsageError.
enum class Verdict : uint8_t {
  kPass,
  kReadWhole,  ///< The interceptor unshards the group before the operator runs.
  kWriteRows,  ///< The operator may write the rows, and whole copies of the group become stale.
  kPrintRows,  ///< The operator gets an ordinary copy of the rows.
  kRefuseOutsideScope,
  kRefuseRowsByNumber,
  kRefuseResult,
  kRefuseOperand,
  kRefuseWriteFromRows,
  kRefuseRandom,
  kRefuseWriteInScope,
  kRefuseReplace,
  kRefuseConvert,
  kRefuseRecording,
};

/// Applies the rules of docs/architecture.md, "What may touch a sharded tensor".
Verdict judge(const Access& access);

/// Message text: how a forward computes with values that differ from the parameter's, e.g. a normalised weight.
constexpr const char* kOtherValuesInForward =
    "To compute with different values in forward, such as a normalised weight, do not write to the parameter: call "
    "torch::linear(x, w / sigma, bias), or assign the module's member and restore it afterwards (auto w = "
    "layer->weight; layer->weight = w / sigma; y = layer(x); layer->weight = w)";

/// Returns the message text that says what to do instead; empty for a verdict that does not refuse.
std::string ways_out(Verdict verdict);

}  // namespace fsdp::runtime
