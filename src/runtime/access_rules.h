#pragma once
/// \file
/// Whether an operator may touch a sharded tensor, and what must happen first. Pure functions.

#include <cstdint>
#include <string>

#include "runtime/operator_traits.h"

namespace fsdp::runtime {

/// Which of a parameter's three storages a tensor lies on.
enum class PartKind : uint8_t { kRows, kWhole, kGradient };

/// One marked operand of an operator.
struct Access {
  OperatorKind op = OperatorKind::kOther;
  PartKind part = PartKind::kRows;
  bool is_parameter = false;     ///< the parameter itself, not a view of it
  bool is_part_of_rows = false;  ///< a view of some of the rows' elements
  bool selects_rows = false;     ///< a view of some of the rows by their numbers
  bool is_first = false;         ///< the operator's first argument, which `set_` and its kin replace
  bool writes = false;
  bool random = false;
  bool recording = false;   ///< autograd would record it
  bool same_sizes = false;  ///< every tensor operand has this one's sizes or one element
  bool inside = false;      ///< the group has an open scope or an open backward
  bool summoned = false;    ///< inside summon_full_params, where whole parameters may be written
  bool local_rows = false;  ///< inside LocalRows
};

enum class Verdict : uint8_t {
  kPass,
  kReadWhole,  ///< make the group whole first
  kWriteRows,  ///< passes, and whole copies of the group become stale
  kRefuseOutsideScope,
  kRefuseRandom,
  kRefuseWriteInScope,
  kRefuseReplace,
  kRefuseClone,
  kRefuseRecording,
};

/// The rules of docs/architecture.md, "What may touch a sharded tensor".
Verdict judge(const Access& access);

/// What to do instead, for a verdict that refuses.
std::string ways_out(Verdict verdict);

}  // namespace fsdp::runtime
