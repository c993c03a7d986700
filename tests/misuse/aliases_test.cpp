// Tests of tensors that have shared a parameter's memory since before fully_shard. They would silently keep old values.

#include <sstream>

#include "misuse/net.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

constexpr const char* kTie = "a->weight = b->weight";

// The first two layers share a whole tensor. The others share only parts of one, such as rows of a padded table.
TEST(Aliases, ParametersTiedByMemoryAndShardedByTwoCallsAreRefused) {
  run_thread_ranks(2, [](int) {
    auto whole = linear_alike(4, 6), twin = linear_alike(4, 6);
    twin->weight.set_data(whole->weight.data());
    fully_shard(*whole);
    expect_error([&] { fully_shard(*twin); },
                 {"@fully_shard: parameter 'weight' has no memory", "shared the memory of parameter 'weight'", kTie});
    EXPECT_EQ(twin->bias.sizes(), torch::IntArrayRef({6})) << "it was not sharded";

    // Layers whose parameters are disjoint parts of one tensor share no memory.
    auto table = torch::linspace(-1, 1, 32).view({8, 4});
    auto one = linear_alike(4, 6), other = linear_alike(4, 2);
    one->weight.set_data(table.narrow(0, 0, 6));
    other->weight.set_data(table.narrow(0, 6, 2));
    fully_shard(*one);
    EXPECT_NO_THROW(fully_shard(*other));
    EXPECT_TRUE(torch::equal(full_tensor(other->weight), torch::linspace(-1, 1, 32).view({8, 4}).narrow(0, 6, 2)));
    barrier();
  });
}

TEST(Aliases, ABufferOrAnIgnoredParameterOnAParametersMemoryIsRefused) {
  run_thread_ranks(2, [](int) {
    auto linear = linear_alike(4, 6);
    linear->register_buffer("shadow", linear->weight.detach().slice(0, 1, 3));
    expect_error([&] { fully_shard(*linear); },
                 {"@fully_shard: ", "'weight' and 'shadow'", "share memory", "clone()"});
    EXPECT_EQ(linear->weight.size(0), 6) << "it was not sharded";

    auto tied = linear_alike(4, 6);
    const auto twin = tied->register_parameter("twin", tied->weight.detach());
    expect_error([&] { fully_shard(*tied, {.ignored_params = {twin}}); }, {"'weight' and 'twin'", kTie});

    auto inner = linear_alike(4, 6);
    nn::Sequential outer(inner, linear_alike(6, 2));
    outer->register_buffer("shadow", inner->weight.detach());
    fully_shard(*inner);
    expect_error([&] { fully_shard(outer); }, {"'shadow' has no memory", "parameter 'weight'"});
    barrier();
  });
}

TEST(Aliases, AViewFromBeforeShardingSaysSoWhenItIsUsed) {
  run_thread_ranks(2, [](int) {
    auto linear = linear_alike(4, 6);
    auto detached = linear->weight.detach(), data = linear->weight.data(), part = data.slice(1, 0, 2);
    auto model = fully_shard(linear);
    for (const auto& alias : {detached, data, part})
      for (const auto& use : std::vector<std::function<void()>>{[&] { alias.sum(); }, [&] { alias.clone(); },
                                                                [&] { alias.zero_(); }, [&] { alias.data_ptr(); }})
        expect_error<c10::Error>(use, {"@", "shared the memory of parameter 'weight'", "clone()", kTie});
    model(torch::ones({1, 4})).sum().backward();
    EXPECT_TRUE(linear->weight.grad().defined());
  });
}

// Only the parameter holds its base tensor, as after torch::zeros(n).unsqueeze(0).
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
  run_thread_ranks(2, [&](int) {
    auto linear = linear_alike(4, 6);
    linear->weight.data().zero_();
    std::stringstream file;
    torch::save(linear_alike(4, 6), file);
    torch::serialize::InputArchive archive;
    archive.load_from(file);
    linear->load(archive);
    auto model = fully_shard(linear);
    EXPECT_TRUE(torch::equal(full_tensor(linear->weight), linear_alike(4, 6)->weight));
    model(torch::ones({1, 4})).sum().backward();
  });
}

}  // namespace
}  // namespace fsdp::test
