// Tensors on the memory of a parameter from before fully_shard, which would keep its old values unseen.

#include <sstream>

#include "misuse/net.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kTie = "a->weight = b->weight";

// A linear layer with the same values on every rank.
nn::Linear filled_linear(int64_t in, int64_t out) {
  nn::Linear linear(in, out);
  torch::NoGradGuard no_grad;
  for (auto& p : linear->parameters()) p.copy_(torch::linspace(-1, 1, p.numel()).view(p.sizes()));
  return linear;
}

TEST(Aliases, ParametersTiedByMemoryAndShardedByTwoCallsAreRefused) {
  run_thread_ranks(2, [](int r) {
    auto a = filled_linear(4, 6), b = filled_linear(4, 6);
    b->weight.set_data(a->weight.data());
    fully_shard(*a);
    EXPECT_THAT(message_of([&] { fully_shard(*b); }),
                AllOf(HasSubstr(c10::str("[fsdp rank ", r, "/2] fully_shard: parameter 'weight' has no memory")),
                      HasSubstr("on the memory of parameter 'weight'"), HasSubstr(kTie)));
    EXPECT_EQ(b->bias.sizes(), torch::IntArrayRef({6})) << "it was not sharded";
    barrier();
  });
}

// As rows of a padded table are.
TEST(Aliases, ParametersTiedByMemoryThatIsPartOfATensorAreRefusedByASecondCall) {
  run_thread_ranks(2, [](int r) {
    auto table = torch::linspace(-1, 1, 32).view({8, 4});
    auto a = filled_linear(4, 6), b = filled_linear(4, 5), other = filled_linear(4, 2);
    a->weight.set_data(table.narrow(0, 0, 6));
    b->weight.set_data(table.narrow(0, 1, 5));
    other->weight.set_data(table.narrow(0, 6, 2));
    fully_shard(*a);
    EXPECT_THAT(message_of([&] { fully_shard(*b); }),
                AllOf(HasSubstr(c10::str("[fsdp rank ", r, "/2] fully_shard: parameter 'weight' has memory of another")),
                      HasSubstr("on the memory of parameter 'weight'"), HasSubstr(kTie)));
    nn::Sequential outer(filled_linear(6, 2));
    outer->register_buffer("shadow", table);
    EXPECT_THAT(message_of([&] { fully_shard(outer); }), HasSubstr("'shadow' has memory of another parameter"));
    EXPECT_NO_THROW(fully_shard(*other));
    a = nullptr;
    EXPECT_NO_THROW(fully_shard(*b)) << "nobody has the parameter any more";
    barrier();
  });
}

TEST(Aliases, ParametersTiedByAssignmentAreShared) {
  run_thread_ranks(2, [](int) {
    auto a = filled_linear(4, 6), b = filled_linear(4, 6);
    b->weight = a->weight;
    b->register_parameter("weight_again", a->weight);
    fully_shard(*a);
    EXPECT_EQ(fully_shard(b).stats().groups, 2);
  });
}

TEST(Aliases, ABufferOnAParametersMemoryIsRefused) {
  run_thread_ranks(2, [](int r) {
    auto linear = filled_linear(4, 6);
    linear->register_buffer("shadow", linear->weight.detach().slice(0, 1, 3));
    EXPECT_THAT(message_of([&] { fully_shard(*linear); }),
                AllOf(HasSubstr(c10::str("[fsdp rank ", r, "/2] fully_shard: ")), HasSubstr("'weight' and 'shadow'"),
                      HasSubstr("the same memory"), HasSubstr("clone()")));
    EXPECT_EQ(linear->weight.size(0), 6) << "it was not sharded";

    auto inner = filled_linear(4, 6);
    nn::Sequential outer(inner, filled_linear(6, 2));
    outer->register_buffer("shadow", inner->weight.detach());
    fully_shard(*inner);
    EXPECT_THAT(message_of([&] { fully_shard(outer); }),
                AllOf(HasSubstr("'shadow' has no memory"), HasSubstr("parameter 'weight'")));
    barrier();
  });
}

TEST(Aliases, AnIgnoredParameterOnAnotherOnesMemoryIsRefused) {
  run_thread_ranks(2, [](int) {
    auto linear = filled_linear(4, 6);
    FullyShardOptions options;
    options.ignored_params = {linear->register_parameter("twin", linear->weight.detach())};
    EXPECT_THAT(message_of([&] { fully_shard(*linear, options); }),
                AllOf(HasSubstr("'weight' and 'twin'"), HasSubstr(kTie)));
  });
}

TEST(Aliases, AViewFromBeforeShardingSaysSoWhenItIsUsed) {
  run_thread_ranks(2, [](int r) {
    auto linear = filled_linear(4, 6);
    auto detached = linear->weight.detach(), data = linear->weight.data(), part = data.slice(1, 0, 2);
    auto model = fully_shard(linear);
    for (const auto& alias : {detached, data, part})
      for (const auto& use : std::vector<std::function<void()>>{[&] { alias.sum(); }, [&] { alias.clone(); },
                                                                [&] { alias.zero_(); }, [&] { alias.data_ptr(); }})
        EXPECT_THAT(message_of<c10::Error>(use),
                    AllOf(HasSubstr(c10::str("[fsdp rank ", r, "/2] ")),
                          HasSubstr("on the memory of parameter 'weight'"), HasSubstr("clone()"), HasSubstr(kTie)));
    model(torch::ones({1, 4})).sum().backward();
    EXPECT_TRUE(linear->weight.grad().defined());
  });
}

// Layers that somebody cut out of one tensor have nothing in common.
TEST(Aliases, ParametersThatArePartsOfOneTensorMayBeShardedByThemselves) {
  run_thread_ranks(2, [](int) {
    auto all = torch::linspace(-1, 1, 48).view({12, 4});
    std::vector<nn::Linear> linears;
    for (const auto& part : all.chunk(2)) {
      linears.push_back(filled_linear(4, 6));
      linears.back()->weight.set_data(part.detach());
      fully_shard(*linears.back());
    }
    EXPECT_TRUE(torch::equal(torch::cat({full_tensor(linears[0]->weight), full_tensor(linears[1]->weight)}), all));
  });
}

// The base is held by the parameter alone, as that of torch::zeros(n).unsqueeze(0).
TEST(Aliases, AParameterThatIsAViewItselfTrains) {
  run_thread_ranks(2, [](int) {
    struct Token : nn::Module {
      torch::Tensor token = register_parameter("token", torch::linspace(-1, 1, 12).view({4, 3}));
      torch::Tensor forward(const torch::Tensor& x) { return x * token; }
    };
    auto token = std::make_shared<Token>();
    auto model = fully_shard(token);
    model(torch::ones({4, 3})).sum().backward();
    EXPECT_TRUE(torch::equal(full_grad(token->token), torch::ones({4, 3})));
    EXPECT_TRUE(torch::equal(full_tensor(token->token), torch::linspace(-1, 1, 12).view({4, 3})));
  });
}

TEST(Aliases, AnArchiveThatAModelWasLoadedFromMayLiveOn) {
  std::string file = [] {
    std::ostringstream text;
    torch::save(filled_linear(4, 6), text);
    return text.str();
  }();
  run_thread_ranks(2, [&](int) {
    nn::Linear linear(4, 6);
    std::istringstream text(file);
    torch::serialize::InputArchive archive;
    archive.load_from(text);
    linear->load(archive);
    auto model = fully_shard(linear);
    EXPECT_TRUE(torch::equal(full_tensor(linear->weight), filled_linear(4, 6)->weight));
    model(torch::ones({1, 4})).sum().backward();
  });
}

}  // namespace
}  // namespace fsdp::test
