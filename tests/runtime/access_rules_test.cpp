// Tests of each rule about the operators that may use a sharded tensor.

#include "runtime/access_rules.h"

#include <gtest/gtest.h>

#include <set>

namespace fsdp::runtime {
namespace {

using enum Conversion;
using enum Fit;
using enum OperatorKind;
using enum PartKind;
using enum Verdict;

struct Rule {
  std::vector<OperatorKind> operators;  // the rule holds with each of these as the operator of `access`
  Access access;
  Verdict verdict;
};
using Operators = std::vector<OperatorKind>;
const Operators kRowWise{kView, kCopy, kFill, kForeach, kFused}, kWithOperands{kPointwise, kCopy, kForeach},
    kValueless{kMetadata, kDetach, kFactory};

const Rule kRules[] = {
    // Operators that read no values pass everywhere.
    {kValueless, {.is_parameter = true, .is_first = true}, kPass},
    {kValueless, {.is_parameter = true, .is_first = true, .recording = true, .inside = true}, kPass},
    {kValueless, {.part = kWhole, .is_parameter = true, .is_first = true, .recording = true}, kPass},
    {kValueless, {.part = kWhole, .is_parameter = true, .is_first = true, .inside = true}, kPass},
    {kValueless, {.part = kGradient, .is_first = true, .recording = true}, kPass},
    {kValueless, {.part = kGradient, .is_first = true, .inside = true}, kPass},
    // Row-wise operators mean the same on rows, so rows accept them unless autograd records. A write to rows is
    // counted; a write to a gradient is not.
    {kRowWise, {}, kPass},
    {kRowWise, {.recording = true}, kRefuseOutsideScope},
    {{kCopy, kFill, kForeach, kFused, kPointwise}, {.writes = true}, kWriteRows},
    {{kCopy}, {.part = kGradient, .writes = true}, kPass},
    {{kOther}, {}, kRefuseOutsideScope},
    {{kOther}, {.recording = true}, kRefuseOutsideScope},
    {{kOther}, {.part = kGradient}, kRefuseOutsideScope},
    {{kOther}, {.part = kGradient, .recording = true}, kRefuseOutsideScope},
    // The other operands must fit. In a scope the error names the gradient. Recording is refused before anything else.
    {kWithOperands, {}, kPass},
    {kWithOperands, {.writes = true, .fit = kTakesRows}, kWriteRows},
    {kWithOperands, {.fit = kMisfits}, kRefuseOperand},
    {kWithOperands, {.writes = true, .fit = kMisfits}, kRefuseOperand},
    {kWithOperands, {.fit = kWrittenFromRows}, kRefuseWriteFromRows},
    {kWithOperands, {.part = kGradient, .fit = kMisfits, .inside = true}, kRefuseWriteFromRows},
    {kWithOperands, {.part = kGradient, .fit = kWrittenFromRows, .inside = true}, kRefuseWriteFromRows},
    {kWithOperands, {.recording = true, .fit = kMisfits}, kRefuseOutsideScope},
    {kWithOperands, {.recording = true, .fit = kWrittenFromRows}, kRefuseOutsideScope},
    // A gradient may be converted, and is printed from a copy except in LocalRows.
    {{kCopy}, {.part = kGradient, .is_first = true}, kPass},
    {{kCopy}, {.part = kGradient, .is_first = true, .conversion = kPrints}, kPrintRows},
    {{kCopy}, {.part = kGradient, .is_first = true, .conversion = kPrints, .local_rows = true}, kPass},
    // Random numbers, even those of rand_like, are refused, except in LocalRows and for whole values.
    {{kPointwise, kOther, kFill}, {.writes = true, .random = true}, kRefuseRandom},
    {{kFactory}, {.random = true}, kRefuseRandom},
    {{kFactory}, {.random = true, .local_rows = true}, kPass},
    {{kFactory}, {.part = kWhole, .random = true, .inside = true}, kPass},
    // Part of the rows may be copied. Rows may not be selected by number, and part of them may be neither written nor
    // computed with.
    {{kCopy}, {.is_part_of_rows = true}, kPass},
    {{kView, kCopy}, {.selects_rows = true}, kRefuseRowsByNumber},
    {{kCopy, kFill, kPointwise}, {.is_part_of_rows = true, .writes = true}, kRefuseOutsideScope},
    {{kPointwise}, {.is_part_of_rows = true}, kRefuseOutsideScope},
    {{kFill}, {.is_part_of_rows = true, .writes = true, .local_rows = true}, kWriteRows},
    // A tensor that was computed from rows follows the rules of a gradient, and errors name the functions that compute
    // over all ranks. A copy must not hide which dim has the rows.
    {kValueless, {.part = kResult, .is_first = true, .recording = true}, kPass},
    {{kCopy, kFill, kForeach, kFused, kPointwise}, {.part = kResult, .writes = true}, kPass},
    {{kOther, kReplace}, {.part = kResult, .is_first = true}, kRefuseResult},
    {kRowWise, {.part = kResult, .recording = true}, kRefuseResult},
    {{kView, kCopy}, {.part = kResult, .selects_rows = true}, kRefuseResult},
    {{kViewOrCopy, kCopy, kClone}, {.part = kResult, .reorders_rows = true}, kRefuseResult},
    {{kPointwise}, {.part = kResult, .fit = kMisfits}, kRefuseOperand},
    {{kFill}, {.part = kResult, .writes = true, .random = true}, kRefuseRandom},
    {{kOther}, {.part = kResult, .local_rows = true}, kPass},
    // A parameter itself may not be cloned, but its rows may.
    {{kClone}, {.is_parameter = true}, kRefuseConvert},
    {{kClone}, {.is_parameter = true, .recording = true}, kRefuseConvert},
    {{kClone}, {}, kPass},
    // LocalRows lifts every rule except those about autograd and storage.
    {{kOther, kPointwise, kClone, kFill}, {.is_parameter = true, .random = true, .local_rows = true}, kPass},
    {{kClone}, {.is_parameter = true, .local_rows = true}, kPass},
    {{kOther, kPointwise, kClone, kFill}, {.writes = true, .local_rows = true}, kWriteRows},
    {{kOther}, {.recording = true, .local_rows = true}, kRefuseOutsideScope},
    {{kReplace}, {.is_first = true, .local_rows = true}, kRefuseReplace},
    // In a scope, rows may not be written, but zero_grad() may be called.
    {{kFill}, {.writes = true, .inside = true}, kRefuseWriteInScope},
    {{kFill}, {.part = kGradient, .writes = true, .inside = true}, kPass},
    // Whole values end with their scope, though views of them may live on. Under summon_full_params they may be
    // written, but autograd must not record operators on them.
    {{kOther}, {.part = kWhole}, kRefuseOutsideScope},
    {{kView}, {.part = kWhole}, kPass},
    {{kFill}, {.part = kWhole, .writes = true, .inside = true}, kRefuseWriteInScope},
    {{kFill}, {.part = kWhole, .writes = true, .inside = true, .summoned = true}, kReadWhole},
    {{kFill}, {.part = kWhole, .writes = true, .summoned = true}, kRefuseWriteInScope},
    {kWithOperands, {.part = kWhole, .inside = true, .summoned = true}, kReadWhole},
    {kWithOperands, {.part = kWhole, .recording = true, .inside = true, .summoned = true}, kRefuseRecording},
    // The storage of the first argument may be replaced only by itself.
    {{kReplace}, {.conversion = kNothing}, kPass},
    {{kReplace}, {.is_first = true, .conversion = kNothing}, kPass},
    {{kReplace}, {.is_first = true}, kRefuseReplace},
    {{kReplace}, {.is_first = true, .inside = true}, kRefuseReplace},
    {{kReplace}, {.part = kWhole, .is_first = true}, kRefuseReplace},
    {{kReplace}, {.part = kWhole, .is_first = true, .inside = true}, kRefuseReplace},
    {{kReplace}, {.part = kWhole, .is_first = true, .inside = true, .summoned = true}, kRefuseReplace},
    {{kReplace}, {.part = kGradient, .is_first = true}, kRefuseOutsideScope},
    // A parameter may be converted only to the dtype and device that it has, and it may be printed.
    {{kCopy}, {.is_parameter = true, .is_first = true}, kRefuseConvert},
    {{kCopy}, {.is_parameter = true, .is_first = true, .recording = true}, kRefuseConvert},
    {{kCopy}, {.is_parameter = true, .is_first = true, .conversion = kNothing}, kPass},
    {{kCopy}, {.is_parameter = true, .is_first = true, .recording = true, .conversion = kNothing}, kPass},
    {{kCopy}, {.is_parameter = true, .is_first = true, .conversion = kPrints}, kPrintRows},
    {{kCopy}, {.is_parameter = true, .is_first = true, .recording = true, .conversion = kPrints}, kPrintRows},
};

TEST(AccessRules, AreThoseOfTheTable) {
  for (const auto& rule : kRules)
    for (const auto op : rule.operators) {
      auto access = rule.access;
      access.op = op;
      EXPECT_EQ(judge(access), rule.verdict) << "rule " << &rule - kRules << ", operator " << static_cast<int>(op);
    }
}

TEST(WholeParameters, AreReadInsideAScopeByWhateverComputes) {
  const std::set<OperatorKind> reads_nothing{kMetadata, kDetach, kFactory, kView};
  for (auto op :
       {kMetadata, kDetach, kFactory, kView, kCopy, kClone, kFill, kForeach, kFused, kPointwise, kReplace, kOther})
    for (bool recording : {false, true})
      EXPECT_EQ(judge({.op = op, .part = kWhole, .recording = recording, .inside = true}),
                reads_nothing.contains(op) ? kPass : kReadWhole)
          << static_cast<int>(op);
}

}  // namespace
}  // namespace fsdp::runtime
