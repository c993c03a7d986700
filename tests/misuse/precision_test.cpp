// Policies of mixed precision that cannot be.

#include "support/precision_net.h"
#include "misuse/net.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using testing::AllOf;
using testing::HasSubstr;

std::string refusal_of(const MixedPrecisionPolicy& policy) {
  nn::Linear linear(4, 3);
  auto message = message_of([&] { fully_shard(linear, {.mp_policy = policy}); });
  EXPECT_EQ(linear->weight.size(0), 3) << "it was sharded";
  return message;
}

TEST(MisusePrecision, DtypesInWhichNothingIsSummedAreRefused) {
  run_thread_ranks(2, [](int) {
    EXPECT_THAT(refusal_of({.param_dtype = torch::kChar}), AllOf(HasSubstr("param_dtype"), HasSubstr("found Char")));
    EXPECT_THAT(refusal_of({.param_dtype = torch::kFloat8_e4m3fn}),
                AllOf(HasSubstr("param_dtype"), HasSubstr("Float8_e4m3fn")));
    EXPECT_THAT(refusal_of({.reduce_dtype = torch::kInt}), AllOf(HasSubstr("reduce_dtype"), HasSubstr("found Int")));
    EXPECT_THAT(refusal_of({.output_dtype = torch::kBool}), AllOf(HasSubstr("output_dtype"), HasSubstr("found Bool")));
  });
}

TEST(MisusePrecision, KeepingPartsOfNothingIsRefused) {
  run_thread_ranks(2, [](int) {
    MixedPrecisionPolicy policy;
    policy.keeps_precision = [](const nn::Module&, const std::string&) { return true; };
    EXPECT_THAT(refusal_of(policy), HasSubstr("Set param_dtype or reduce_dtype"));
  });
}

TEST(MisusePrecision, RanksWithDifferentPoliciesAreTold) {
  run_thread_ranks(2, [](int rank) {
    nn::Linear linear = build_alike([] { return nn::Linear(4, 3); });
    MixedPrecisionPolicy policy{.param_dtype = rank == 0 ? torch::kBFloat16 : torch::kHalf};
    EXPECT_THROW(fully_shard(linear, {.mp_policy = policy}), Mismatch);
  });
}

TEST(MisusePrecision, AnOperatorOnParametersOfTwoDtypesNamesBoth) {
  struct TwoImpl : nn::Module {
    nn::Linear a{4, 4}, b{4, 4};
    TwoImpl() {
      register_module("a", a);
      register_module("b", b);
    }
  };
  run_thread_ranks(2, [](int) {
    const auto net = build_alike([] { return std::make_shared<TwoImpl>(); });
    fully_shard(*net->a, {.mp_policy = MixedPrecisionPolicy{.param_dtype = torch::kBFloat16}});
    fully_shard(*net->b, {.mp_policy = MixedPrecisionPolicy{.param_dtype = torch::kHalf}});
    const auto group = fully_shard(static_cast<nn::Module&>(*net), {});
    ForwardScope scope(group);
    EXPECT_THAT(message_of([&] { torch::matmul(net->a->weight, net->b->weight); }),
                AllOf(HasSubstr("'a.weight' (group 'a') in BFloat16"), HasSubstr("'b.weight' (group 'b') in Half"),
                      HasSubstr("param_dtype")));
  });
}

TEST(MisusePrecision, WritingRoundedValuesBackIsRefused) {
  run_thread_ranks(2, [](int) {
    nn::Linear linear = build_alike([] { return nn::Linear(4, 3); });
    const auto values = linear->weight.detach().clone();
    const auto model = fully_shard(linear, {.mp_policy = MixedPrecisionPolicy{.param_dtype = torch::kBFloat16}});
    {
      SummonFullParams whole(model);
      EXPECT_THAT(message_of([&] { whole.write_back(); }),
                  AllOf(HasSubstr("'weight' are BFloat16"), HasSubstr("rounded from Float"), HasSubstr("LocalRows")));
    }
    EXPECT_TRUE(torch::equal(full_tensor(linear->weight), values));
  });
}

}  // namespace
}  // namespace fsdp::test
