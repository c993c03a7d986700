#pragma once
/// \file
/// Whether an operator may touch a sharded tensor, and what must happen first. Pure functions.

#include <cstdint>
#include <string>

#include "runtime/operator_traits.h"

namespace fsdp::runtime {

/// On which of a parameter's storages a tensor lies; kResult: on one of its own, see Note [Results of rows].
enum class PartKind : uint8_t { kRows, kWhole, kGradient, kResult };

/// How the other operands of an element-wise operator meet the rows of a parameter.
enum class Fit : uint8_t {
  kFits,             ///< their rows are the same ones, or they are broadcast along the rows
  kTakesRows,        ///< they fit once this rank's rows are taken of those that have the whole parameter's sizes
  kMisfits,          ///< one has other sizes or other rows
  kWrittenFromRows,  ///< an ordinary tensor that is written has other sizes than the rows
};

struct Access {
  OperatorKind op = OperatorKind::kOther;
  PartKind part = PartKind::kRows;
  bool is_parameter = false;     ///< the parameter itself, not a view of it
  bool is_part_of_rows = false;  ///< a view that does not have all of the rows
  bool selects_rows = false;     ///< a view of some of the rows by their numbers
  bool reorders_rows = false;    ///< a copy in which rows may be another dim than the first
  bool is_first = false;         ///< the operator's first argument, which `set_` and its kin replace
  bool writes = false;
  bool random = false;
  bool recording = false;                         ///< autograd would record it
  Fit fit = Fit::kFits;                           ///< of the other operands of an element-wise operator
  Conversion conversion = Conversion::kConverts;  ///< of kReplace, and of the first argument of kCopy without writes
  bool inside = false;                            ///< the group has an open scope or an open backward
  bool summoned = false;                          ///< inside summon_full_params, where whole parameters may be written
  bool local_rows = false;                        ///< inside LocalRows
};

enum class Verdict : uint8_t {
  kPass,
  kReadWhole,  ///< make the group whole first
  kWriteRows,  ///< passes, and whole copies of the group become stale
  kPrintRows,  ///< passes on an ordinary copy of the rows
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

/// The rules of docs/architecture.md, "What may touch a sharded tensor".
Verdict judge(const Access& access);

/// How a forward computes with other values than a parameter has, e.g. a normalised weight.
constexpr const char* kOtherValuesInForward =
    "To compute with different values in forward, such as a normalised weight, do not write to the parameter: call "
    "torch::linear(x, w / sigma, bias), or assign the module's member and restore it afterwards (auto w = "
    "layer->weight; layer->weight = w / sigma; y = layer(x); layer->weight = w)";

/// What to do instead, for a verdict that refuses.
std::string ways_out(Verdict verdict);

}  // namespace fsdp::runtime
