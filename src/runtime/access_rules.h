#pragma once
/// \file
/// Pure functions that decide whether an operator may take a sharded tensor, and what must happen first.

#include <cstdint>
#include <string>

#include "runtime/operator_traits.h"

namespace fsdp::runtime {

/// The storage of a parameter on which a tensor lies. A kResult has a storage of its own: see Note [Results of rows].
enum class PartKind : uint8_t { kRows, kWhole, kGradient, kResult };

/// How well the other operands of an element-wise operator fit the rows of a parameter, from best to worst.
enum class Fit : uint8_t {
  kFits,             ///< they have the same rows, or they are broadcast along the rows
  kTakesRows,        ///< some have the whole parameter's sizes and are replaced by this rank's rows of them
  kMisfits,          ///< an operand has other sizes or other rows
  kWrittenFromRows,  ///< the operator writes to an ordinary tensor that has other sizes than the rows
};

/// Description of what an operator does with one sharded operand.
struct Access {
  OperatorKind op = OperatorKind::kOther;
  PartKind part = PartKind::kRows;
  bool is_parameter = false;     ///< the operand is the parameter itself, not a view of it
  bool is_part_of_rows = false;  ///< the operand is a view that does not contain all elements of the rows
  bool selects_rows = false;     ///< the operator makes a view of some of the rows by their indices
  bool reorders_rows = false;    ///< the operator makes a copy in which rows may be another dim than the first
  bool is_first = false;         ///< the operand is the first argument, which `set_` and similar operators replace
  bool writes = false;           ///< the operator writes to the operand
  bool random = false;           ///< the operator draws random numbers
  bool recording = false;        ///< autograd would record the operator
  Fit fit = Fit::kFits;          ///< for an element-wise operator: whether the other operands fit this one
  Conversion conversion = Conversion::kConverts;  ///< for a kReplace, or the first operand of a kCopy without writes
  bool inside = false;                            ///< the group has an open scope or an open backward
  bool summoned = false;                          ///< inside summon_full_params, where whole parameters may be written
  bool local_rows = false;                        ///< inside LocalRows
};

/// Action of the interceptor for an operand. For the verdicts kRefuse... it throws UsageError.
enum class Verdict : uint8_t {
  kPass,
  kReadWhole,  ///< the interceptor unshards the group before the operator runs
  kWriteRows,  ///< the operator may write the rows, and whole copies of the group become stale
  kPrintRows,  ///< the operator gets an ordinary copy of the rows
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
