#include "comm/core/fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Fingerprint gather_of(const std::string& subject) {
  auto fingerprint = make_fingerprint(Operation::kAllGather, {subject, {1, 0, 1}});
  describe_data(fingerprint, at::zeros({8}), std::array<int64_t, 3>{0, 4, 8});
  fingerprint.sequence = 17;
  return fingerprint;
}

TEST(Fingerprint, OfTheSameCollectiveDoesNotDiffer) { EXPECT_EQ(difference(gather_of("w"), 0, gather_of("w"), 1), ""); }

TEST(Fingerprint, DoesNotDifferByTheVotesCast) {
  auto other = make_fingerprint(Operation::kBarrier, {"w", {0, 1}});
  EXPECT_EQ(difference(make_fingerprint(Operation::kBarrier, {"w", {1, 0}}), 0, other, 1), "");
}

TEST(Fingerprint, NamesEverythingThatDiffers) {
  const auto a = gather_of("w");
  auto b = gather_of("v");
  EXPECT_EQ(difference(a, 0, b, 1), "subject");
  b.operation = Operation::kReduceScatter;
  b.sequence = 18;
  b.bytes = 4;
  b.dtype = static_cast<int8_t>(at::kHalf);
  b.device = static_cast<int8_t>(at::kCUDA);
  b.layout = 5;
  b.vote_count = 4;
  EXPECT_EQ(difference(a, 0, b, 1),
            "operation, subject, position in the order, bytes, dtype, device, boundaries of the ranks' "
            "slices, number of votes");
  EXPECT_THAT(describe_fully(b, {}), HasSubstr("4 bytes of Half on cuda"));
}

TEST(Fingerprint, DiffersByTheBoundariesOfEqualTensors) {
  auto other = gather_of("w");
  describe_data(other, at::zeros({8}), std::array<int64_t, 3>{0, 3, 8});
  EXPECT_EQ(difference(gather_of("w"), 0, other, 1), "boundaries of the ranks' slices");
}

TEST(Fingerprint, KeepsTheBeginningOfALongSubjectAndAHashOfItAll) {
  const std::string common(1000, 'x');
  const auto a = make_fingerprint(Operation::kBarrier, {common + "a", {}});
  const auto b = make_fingerprint(Operation::kBarrier, {common + "b", {}});
  EXPECT_EQ(a.subject(), b.subject());
  EXPECT_GE(a.subject().size(), 100u);
  EXPECT_EQ(a.text.back(), '\0');
  EXPECT_EQ(difference(a, 0, b, 1), "subject");
}

TEST(Fingerprint, DiffersByACountAndSaysOfWhat) {
  const auto once = make_fingerprint(Operation::kBarrier, {"w", {}, {1, "saved checkpoints"}});
  const auto never = make_fingerprint(Operation::kBarrier, {"w", {}, {0, "saved checkpoints"}});
  EXPECT_EQ(difference(once, 0, once, 1), "");
  EXPECT_EQ(difference(once, 0, never, 1), "saved checkpoints");
  EXPECT_EQ(difference(never, 0, once, 1), "saved checkpoints");
  EXPECT_EQ(describe_fully(once, {}), "barrier of 'w' (#0), saved checkpoints: 1");
  EXPECT_EQ(describe_fully(never, {}), "barrier of 'w' (#0)");
}

TEST(Fingerprint, SaysWhatIsCountedBehindALongSubjectToo) {
  const auto twice = make_fingerprint(Operation::kBarrier, {std::string(1000, 'x'), {}, {2, "saved checkpoints"}});
  EXPECT_THAT(describe_fully(twice, {}), HasSubstr("x' (#0), saved checkpoints: 2"));
}

TEST(Fingerprint, OfASendFitsTheRecvOfItsPeerOnly) {
  auto send = make_fingerprint(Operation::kSend, {"w", {}});
  auto recv = make_fingerprint(Operation::kRecv, {"w", {}});
  send.peer = 1;
  recv.peer = 0;
  EXPECT_EQ(difference(send, 0, recv, 1), "");
  EXPECT_EQ(difference(send, 0, send, 1), "operation, peer");
  recv.peer = 2;
  EXPECT_EQ(difference(send, 0, recv, 1), "peer");
}

TEST(Fingerprint, OfABroadcastDiffersByItsRoot) {
  auto a = make_fingerprint(Operation::kBroadcast, {"w", {}});
  auto b = a;
  a.peer = 0;
  b.peer = 1;
  EXPECT_EQ(difference(a, 0, b, 1), "root");
}

TEST(Fingerprint, DescribesItselfInWords) {
  EXPECT_EQ(describe(gather_of("blocks.1"), {}), "all_gather of 'blocks.1' (#17)");
  EXPECT_EQ(describe_fully(gather_of("blocks.1"), {}), "all_gather of 'blocks.1' (#17), 32 bytes of Float, 3 votes");
  EXPECT_EQ(describe(make_fingerprint(Operation::kBarrier, {}), {}), "barrier (#0)");
}

TEST(Fingerprint, NamesTheOtherRankOfAMessageByItsGlobalNumber) {
  auto send = make_fingerprint(Operation::kSend, {"x", {}});
  send.peer = 1;
  EXPECT_EQ(describe(send, {0, 2}), "send of 'x' to rank 1 (#0)");
  EXPECT_EQ(describe(send, Ranks{1, 4}.in_subgroup("odd", {1, 3})), "send of 'x' to rank 3 (#0)");
}

TEST(Votes, SurvivePackingAndAreMergedByOr) {
  const std::vector<uint8_t> votes{1, 0, 0, 1, 0, 0, 0, 0, 0, 1};
  const auto bits = pack_votes(votes);
  EXPECT_THAT(bits, ElementsAre(0b1001, 0b10));
  std::vector<uint8_t> merged{0, 1, 0, 0, 0, 0, 0, 0, 0, 0};
  merge_votes(merged, bits);
  EXPECT_THAT(merged, ElementsAre(1, 1, 0, 1, 0, 0, 0, 0, 0, 1));
}

TEST(Votes, TravelInsideTheFingerprintAsLongAsTheyFit) {
  const size_t most = 8 * Fingerprint::kInlineVoteBytes;
  EXPECT_TRUE(make_fingerprint(Operation::kBarrier, {"", std::vector<uint8_t>(most)}).votes_fit());
  EXPECT_FALSE(make_fingerprint(Operation::kBarrier, {"", std::vector<uint8_t>(most + 1)}).votes_fit());
}

}  // namespace
}  // namespace fsdp
