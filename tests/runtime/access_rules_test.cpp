// Each rule about what may touch a sharded tensor.

#include "runtime/access_rules.h"

#include <gmock/gmock.h>

namespace fsdp::runtime {
namespace {

using Op = OperatorKind;
using testing::HasSubstr;

constexpr std::array kKinds{Op::kMetadata, Op::kDetach,  Op::kFactory, Op::kView,      Op::kCopy,    Op::kClone,
                            Op::kFill,     Op::kForeach, Op::kFused,   Op::kPointwise, Op::kReplace, Op::kOther};

TEST(MetadataAndDetach, PassEverywhere) {
  for (auto part : {PartKind::kRows, PartKind::kWhole, PartKind::kGradient})
    for (bool recording : {false, true})
      for (bool inside : {false, true})
        for (auto op : {Op::kMetadata, Op::kDetach, Op::kFactory}) {
          Access access{
              .op = op, .part = part, .is_parameter = true, .is_first = true, .recording = recording, .inside = inside};
          EXPECT_EQ(judge(access), Verdict::kPass) << static_cast<int>(op) << static_cast<int>(part);
        }
}

TEST(Rows, PassWhatMeansTheSameOnRowsUnlessItIsRecorded) {
  for (auto op : {Op::kView, Op::kCopy, Op::kFill, Op::kForeach, Op::kFused}) {
    EXPECT_EQ(judge({.op = op}), Verdict::kPass) << static_cast<int>(op);
    EXPECT_EQ(judge({.op = op, .recording = true}), Verdict::kRefuseOutsideScope) << static_cast<int>(op);
  }
}

TEST(Rows, CountAWrite) {
  for (auto op : {Op::kCopy, Op::kFill, Op::kForeach, Op::kFused})
    EXPECT_EQ(judge({.op = op, .writes = true}), Verdict::kWriteRows) << static_cast<int>(op);
  EXPECT_EQ(judge({.op = Op::kPointwise, .writes = true}), Verdict::kWriteRows);
  EXPECT_EQ(judge({.op = Op::kCopy, .part = PartKind::kGradient, .writes = true}), Verdict::kPass)
      << "a gradient is not part of the whole copy";
}

TEST(Rows, PassElementWiseOperatorsOnOperandsThatFitOnly) {
  for (auto op : {Op::kPointwise, Op::kCopy, Op::kForeach}) {
    EXPECT_EQ(judge({.op = op}), Verdict::kPass);
    EXPECT_EQ(judge({.op = op, .writes = true, .fit = Fit::kTakesRows}), Verdict::kWriteRows);
    EXPECT_EQ(judge({.op = op, .fit = Fit::kMisfits}), Verdict::kRefuseOperand);
    EXPECT_EQ(judge({.op = op, .writes = true, .fit = Fit::kMisfits}), Verdict::kRefuseOperand);
    EXPECT_EQ(judge({.op = op, .fit = Fit::kWrittenFromRows}), Verdict::kRefuseWriteFromRows);
    for (auto fit : {Fit::kMisfits, Fit::kWrittenFromRows}) {
      EXPECT_EQ(judge({.op = op, .part = PartKind::kGradient, .fit = fit, .inside = true}),
                Verdict::kRefuseGradientInScope);
      EXPECT_EQ(judge({.op = op, .recording = true, .fit = fit}), Verdict::kRefuseOutsideScope);
    }
  }
}

TEST(Rows, AreConvertedToWhatTheyAreAndToBePrintedOnly) {
  Access access{.op = Op::kCopy, .is_parameter = true, .is_first = true};
  for (bool recording : {false, true}) {
    access.recording = recording;
    access.conversion = Conversion::kConverts;
    EXPECT_EQ(judge(access), Verdict::kRefuseConvert);
    access.conversion = Conversion::kNothing;
    EXPECT_EQ(judge(access), Verdict::kPass);
    access.conversion = Conversion::kPrints;
    EXPECT_EQ(judge(access), Verdict::kPrintRows);
  }
  access = {.op = Op::kCopy, .part = PartKind::kGradient, .is_first = true};
  EXPECT_EQ(judge(access), Verdict::kPass);
  access.conversion = Conversion::kPrints;
  EXPECT_EQ(judge(access), Verdict::kPrintRows);
  access.local_rows = true;
  EXPECT_EQ(judge(access), Verdict::kPass);
}

TEST(Rows, RefuseEverythingElse) {
  for (auto part : {PartKind::kRows, PartKind::kGradient})
    for (bool recording : {false, true})
      EXPECT_EQ(judge({.op = Op::kOther, .part = part, .recording = recording}), Verdict::kRefuseOutsideScope);
}

TEST(Rows, RefuseRandomNumbers) {
  for (auto op : {Op::kPointwise, Op::kOther, Op::kFill})
    EXPECT_EQ(judge({.op = op, .writes = true, .random = true}), Verdict::kRefuseRandom);
  EXPECT_EQ(judge({.op = Op::kFactory, .random = true}), Verdict::kRefuseRandom) << "rand_like";
  EXPECT_EQ(judge({.op = Op::kFactory, .random = true, .local_rows = true}), Verdict::kPass);
  EXPECT_EQ(judge({.op = Op::kFactory, .part = PartKind::kWhole, .random = true, .inside = true}), Verdict::kPass);
}

TEST(Rows, RefuseAWriteToSomeOfThemAndComputingWithThem) {
  for (auto op : {Op::kCopy, Op::kFill, Op::kPointwise})
    EXPECT_EQ(judge({.op = op, .is_part_of_rows = true, .writes = true}), Verdict::kRefuseOutsideScope);
  EXPECT_EQ(judge({.op = Op::kPointwise, .is_part_of_rows = true}), Verdict::kRefuseOutsideScope);
  EXPECT_EQ(judge({.op = Op::kCopy, .is_part_of_rows = true}), Verdict::kPass) << "copying them is fine";
  EXPECT_EQ(judge({.op = Op::kFill, .is_part_of_rows = true, .writes = true, .local_rows = true}), Verdict::kWriteRows);
}

TEST(Rows, RefuseACloneOfTheParameterItselfOnly) {
  EXPECT_EQ(judge({.op = Op::kClone, .is_parameter = true}), Verdict::kRefuseClone);
  EXPECT_EQ(judge({.op = Op::kClone, .is_parameter = true, .recording = true}), Verdict::kRefuseClone);
  EXPECT_EQ(judge({.op = Op::kClone, .is_parameter = false}), Verdict::kPass);
  EXPECT_EQ(judge({.op = Op::kClone, .is_parameter = true, .local_rows = true}), Verdict::kPass);
}

TEST(LocalRows, LiftEveryRuleThatIsNotAboutAutogradOrStorage) {
  for (auto op : {Op::kOther, Op::kPointwise, Op::kClone, Op::kFill}) {
    EXPECT_EQ(judge({.op = op, .is_parameter = true, .random = true, .local_rows = true}), Verdict::kPass);
    EXPECT_EQ(judge({.op = op, .writes = true, .local_rows = true}), Verdict::kWriteRows);
  }
  EXPECT_EQ(judge({.op = Op::kOther, .recording = true, .local_rows = true}), Verdict::kRefuseOutsideScope);
  EXPECT_EQ(judge({.op = Op::kReplace, .is_first = true, .local_rows = true}), Verdict::kRefuseReplace);
}

TEST(RowsInsideAScope, RefuseWrites) {
  EXPECT_EQ(judge({.op = Op::kFill, .writes = true, .inside = true}), Verdict::kRefuseWriteInScope);
  EXPECT_EQ(judge({.op = Op::kFill, .part = PartKind::kGradient, .writes = true, .inside = true}), Verdict::kPass)
      << "zero_grad() may be called in a scope";
}

TEST(WholeParameters, AreReadInsideAScopeByWhateverComputes) {
  for (auto op : kKinds) {
    bool reads_nothing = op == Op::kMetadata || op == Op::kDetach || op == Op::kFactory || op == Op::kView;
    for (bool recording : {false, true})
      EXPECT_EQ(judge({.op = op, .part = PartKind::kWhole, .recording = recording, .inside = true}),
                reads_nothing ? Verdict::kPass : Verdict::kReadWhole)
          << static_cast<int>(op);
  }
}

TEST(WholeParameters, AreRefusedOutsideAScope) {
  EXPECT_EQ(judge({.op = Op::kOther, .part = PartKind::kWhole}), Verdict::kRefuseOutsideScope)
      << "a view that outlived its scope";
  EXPECT_EQ(judge({.op = Op::kView, .part = PartKind::kWhole}), Verdict::kPass);
}

TEST(WholeParameters, MayBeWrittenWhenSummonedOnly) {
  Access write{.op = Op::kFill, .part = PartKind::kWhole, .writes = true, .inside = true};
  EXPECT_EQ(judge(write), Verdict::kRefuseWriteInScope);
  write.summoned = true;
  EXPECT_EQ(judge(write), Verdict::kReadWhole);
  write.inside = false;
  EXPECT_EQ(judge(write), Verdict::kRefuseWriteInScope);
}

TEST(Replacing, ByTheTensorItselfPasses) {
  for (bool is_first : {true, false})
    EXPECT_EQ(judge({.op = Op::kReplace, .is_first = is_first, .conversion = Conversion::kNothing}), Verdict::kPass);
}

TEST(Replacing, IsRefusedForTheFirstArgumentAndNotForGradients) {
  for (auto part : {PartKind::kRows, PartKind::kWhole})
    for (bool inside : {false, true})
      EXPECT_EQ(judge({.op = Op::kReplace, .part = part, .is_first = true, .inside = inside}), Verdict::kRefuseReplace);
  EXPECT_NE(judge({.op = Op::kReplace, .part = PartKind::kGradient, .is_first = true}), Verdict::kRefuseReplace);
}

TEST(WaysOut, AreNamedForEveryRefusal) {
  EXPECT_THAT(ways_out(Verdict::kRefuseOutsideScope), HasSubstr("fsdp::ForwardScope"));
  EXPECT_THAT(ways_out(Verdict::kRefuseOutsideScope), HasSubstr("fsdp::clip_grad_norm_"));
  EXPECT_THAT(ways_out(Verdict::kRefuseOutsideScope), HasSubstr("fsdp::LocalRows"));
  EXPECT_THAT(ways_out(Verdict::kRefuseRandom), HasSubstr("fsdp::initialize"));
  EXPECT_THAT(ways_out(Verdict::kRefuseWriteInScope), HasSubstr("optimizer.step()"));
  EXPECT_THAT(ways_out(Verdict::kRefuseWriteInScope), HasSubstr("reset_iter_state()"));
  EXPECT_THAT(ways_out(Verdict::kRefuseReplace), HasSubstr("copy_"));
  for (auto verdict : {Verdict::kRefuseConvert, Verdict::kRefuseOperand, Verdict::kRefuseWriteFromRows})
    EXPECT_THAT(ways_out(verdict), HasSubstr("fsdp::full_tensor"));
  EXPECT_THAT(ways_out(Verdict::kRefuseWriteFromRows), HasSubstr("Adagrad"));
  EXPECT_THAT(ways_out(Verdict::kRefuseGradientInScope), HasSubstr("optimizer.step() belongs after the scope"));
  EXPECT_THAT(ways_out(Verdict::kRefuseClone), HasSubstr("p.detach().clone()"));
  for (auto verdict : {Verdict::kPass, Verdict::kReadWhole, Verdict::kWriteRows, Verdict::kPrintRows})
    EXPECT_EQ(ways_out(verdict), "");
}

}  // namespace
}  // namespace fsdp::runtime
