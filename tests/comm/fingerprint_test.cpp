// Tests of the fingerprints by which ranks compare operations, and of the names of operations and ranks in messages.

#include "comm/core/fingerprint.h"

#include <torch/torch.h>

#include <array>

#include "comm/core/ranks.h"
#include "comm/frame.h"

namespace fsdp::test {
namespace {

Fingerprint gather_of(const std::string& subject) {
  auto fingerprint = make_fingerprint(Operation::kAllGather, {subject});
  describe_data(fingerprint, std::array{at::zeros({8})});
  fingerprint.sequence = 17;
  return fingerprint;
}

Fingerprint reduction_of(const std::vector<at::Tensor>& planes) {
  auto fingerprint = make_fingerprint(Operation::kReduceScatter, {"w"});
  describe_data(fingerprint, planes, 2);
  return fingerprint;
}

Fingerprint barrier_of(const Tag& tag) { return make_fingerprint(Operation::kBarrier, tag); }

Fingerprint with_peer(Operation operation, int peer) {
  auto fingerprint = make_fingerprint(operation, {"w"});
  fingerprint.peer = peer;
  return fingerprint;
}

TEST(Fingerprint, NamesEverythingThatDiffers) {
  const std::string common(1000, 'x');
  auto different = gather_of("v");
  different.operation = Operation::kReduceScatter;
  different.sequence = 18;
  describe_data(different, std::array{at::zeros({2}, at::kHalf)});
  different.device = static_cast<int8_t>(at::kCUDA);
  const auto floats = [](int64_t numel) { return at::zeros({numel}); };
  const auto once = barrier_of({"w", {1, "saved checkpoints"}}), never = barrier_of({"w", {0, "saved checkpoints"}});
  struct Pair {
    Fingerprint of_rank_0, of_rank_1;
    std::string difference;
  };
  const std::vector<Pair> pairs{
      {gather_of("w"), gather_of("w"), ""},
      {gather_of("w"), gather_of("v"), "subject"},
      {gather_of("w"), different,
       "operation, subject, position in the queue, bytes, dtype, device"},
      {reduction_of({floats(3), floats(5)}), reduction_of({floats(3), floats(5)}), ""},
      {reduction_of({floats(3), floats(5)}), reduction_of({floats(3)}), "bytes, number of tensors"},
      {reduction_of({floats(3), floats(5)}), reduction_of({floats(3), floats(0), floats(5)}), "number of tensors"},
      {reduction_of({floats(3), floats(5)}), reduction_of({floats(3), floats(6)}), "bytes, lengths of the tensors"},
      {reduction_of({floats(3), floats(5)}), reduction_of({floats(4), floats(4)}), "lengths of the tensors"},
      {reduction_of({floats(3), floats(4)}),
       reduction_of({floats(3), at::zeros({4}, at::kInt)}),
       "dtype"},
      {barrier_of({common + "a"}), barrier_of({common + "b"}), "subject"},
      {barrier_of({.subject = "save", .shown = "save of a"}),
       barrier_of({.subject = "save", .shown = "save of b"}),
       ""},
      {once, once, ""},
      {once, never, "saved checkpoints"},
      {never, once, "saved checkpoints"},
      {with_peer(Operation::kSend, 1), with_peer(Operation::kRecv, 0), ""},
      {with_peer(Operation::kSend, 1), with_peer(Operation::kSend, 1), "operation, peer"},
      {with_peer(Operation::kSend, 1), with_peer(Operation::kRecv, 2), "peer"},
      {with_peer(Operation::kBroadcast, 0), with_peer(Operation::kBroadcast, 1), "root"}};
  for (size_t i = 0; i < pairs.size(); ++i)
    EXPECT_EQ(difference(pairs[i].of_rank_0, 0, pairs[i].of_rank_1, 1), pairs[i].difference) << "pair " << i;
}

TEST(Fingerprint, DescribesItselfInWords) {
  const Tag counted{"w", {1, "saved checkpoints"}}, none{"w", {0, "saved checkpoints"}},
      long_one{std::string(1000, 'x'), {2, "saved checkpoints"}};
  auto half = gather_of("w");
  describe_data(half, std::array{at::zeros({2}, at::kHalf)});
  half.device = static_cast<int8_t>(at::kCUDA);
  const auto send = with_peer(Operation::kSend, 1);
  EXPECT_EQ(describe(gather_of("blocks.1"), {}), "all_gather of 'blocks.1' (#17)");
  EXPECT_EQ(describe_fully(gather_of("blocks.1"), {}), "all_gather of 'blocks.1' (#17), 32 bytes of Float");
  EXPECT_EQ(describe_fully(reduction_of({at::zeros({3}), at::zeros({5}, at::kHalf)}), {}),
            "reduce_scatter of 'w' (#0), 44 bytes in 2 tensors, the first of Float");
  EXPECT_THAT(describe_fully(half, {}), testing::HasSubstr("4 bytes of Half on cuda"));
  EXPECT_EQ(describe(barrier_of({}), {}), "barrier (#0)");
  EXPECT_EQ(describe(barrier_of({.subject = "save", .shown = "save of a"}), {}), "barrier of 'save of a' (#0)");
  EXPECT_EQ(describe_fully(barrier_of(counted), {}), "barrier of 'w' (#0), saved checkpoints: 1");
  EXPECT_EQ(describe_fully(barrier_of(none), {}), "barrier of 'w' (#0)");
  EXPECT_THAT(describe_fully(barrier_of(long_one), {}), testing::HasSubstr("x' (#0), saved checkpoints: 2"));
  EXPECT_GE(barrier_of(long_one).subject().size(), 100u);
  EXPECT_EQ(describe(send, {0, 2}), "send of 'w' to rank 1 (#0)");
  EXPECT_EQ(describe(send, Ranks{1, 4}.in_subgroup("odd", {1, 3})), "send of 'w' to rank 3 (#0)");
}

TEST(Ranks, OfASubgroupAreNamedByTheirGlobalNumbers) {
  struct Named {
    Ranks ranks;
    int own, of_rank_0;
    std::string where;
  };
  const std::vector<Named> groups{
      {{1, 4}, 1, 0, "[fsdp rank 1/4] step: "},
      {Ranks{5, 8}.in_subgroup("pairs", {2, 5}), 5, 2, "[fsdp rank 5/8, 'pairs' 1/2] step: "},
      {Ranks{5, 8}.in_subgroup("upper", {3, 5, 7}).in_subgroup("outer", {5, 7}), 5, 5,
       "[fsdp rank 5/8, 'outer' 0/2] step: "},
      {Ranks{1, 2}.in_subgroup("again", {0, 1}), 1, 0, "[fsdp rank 1/2, 'again' 1/2] step: "}};
  for (const auto& [ranks, own, of_rank_0, where] : groups) {
    EXPECT_EQ(ranks.name(), own);
    EXPECT_EQ(ranks.name_of(0), of_rank_0);
    EXPECT_EQ(ranks.where("step"), where);
  }
}

}  // namespace
}  // namespace fsdp::test
