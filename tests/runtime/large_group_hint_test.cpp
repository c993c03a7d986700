// What a model that is one large group is told.

#include "api/large_group_hint.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>

#include "support/small_net.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// What rank 0 of `world` is told of a net of 4 blocks.
std::string hint_of(int world, const std::function<Group(SmallNetImpl&)>& shard, int64_t least_bytes = 0) {
  std::string hint;
  const auto ask = [&](int rank) {
    const auto net = build_alike([] { return std::make_shared<SmallNetImpl>(12, 4); });
    const auto group = shard(*net);
    if (rank == 0) hint = large_group_hint(GroupView::of(group), least_bytes);
  };
  run_thread_ranks(world, ask, {.backend = "gloo"});
  return hint;
}

Group shard_whole(SmallNetImpl& net) { return fully_shard(static_cast<nn::Module&>(net)); }

TEST(OneLargeGroup, IsToldTheBytesAtStakeAndWhatCouldBeGroups) {
  EXPECT_THAT(hint_of(2, shard_whole),
              AllOf(HasSubstr("[fsdp rank 0/2]"), HasSubstr("'SmallNet' is one group"), HasSubstr("all 0.02 MB"),
                    HasSubstr("4 modules of type SmallBlock at most 0.01 MB")));
}

TEST(OneLargeGroup, IsToldNothingWhereNothingIsAtStake) {
  EXPECT_THAT(hint_of(2, shard_whole, 1 << 20), IsEmpty()) << "it is small";
  EXPECT_THAT(hint_of(1, shard_whole), IsEmpty()) << "nothing is gathered";
  EXPECT_THAT(hint_of(2, [](SmallNetImpl& net) { return shard_blocks(net); }), IsEmpty()) << "it has several groups";
  const auto stays = [](SmallNetImpl& net) {
    return fully_shard(static_cast<nn::Module&>(net), {.strategy = Strategy::kShardGradOp});
  };
  EXPECT_THAT(hint_of(2, stays), IsEmpty()) << "all of it is meant to be whole";
}

struct Warnings : c10::WarningHandler {
  void process(const c10::Warning& warning) override { messages.push_back(warning.msg()); }
  std::vector<std::string> messages;
};

TEST(OneLargeGroup, IsToldOnceOnTheFirstRank) {
  const auto open_scopes = [](int rank) {
    Warnings warnings;
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    nn::ModuleList net;
    for (int i = 0; i < 3; ++i) net->push_back(nn::Sequential(nn::Linear(nn::LinearOptions(1750, 1750).bias(false))));
    for (auto& parameter : net->parameters()) parameter.detach().zero_();
    const auto model = fully_shard(*net);
    for (int i = 0; i < 2; ++i) ForwardScope(model).close();
    if (rank == 0)
      EXPECT_THAT(warnings.messages, ElementsAre(HasSubstr("3 modules of type Sequential")));
    else
      EXPECT_THAT(warnings.messages, IsEmpty());
  };
  run_thread_ranks(2, open_scopes, {.backend = "gloo"});
}

}  // namespace
}  // namespace fsdp::test
