// Tests that models that are built without memory get the same values as ordinary ones, bit for bit.

#include "state/trainee.h"
#include "support/counted_memory.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

// A module with constructors of all kinds: initialisers that read sizes, write a row, compute with other tensors, ask
// for values or convert. It also has buffers, scalars, a tied and a frozen weight, and numbers written without
// operators.
struct ManyInitsImpl : nn::Module {
  nn::Embedding tokens = register_module("tokens", nn::Embedding(nn::EmbeddingOptions(13, 6).padding_idx(2)));
  nn::Conv2d conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(3, 5, 3)));
  nn::BatchNorm2d norm = register_module("norm", nn::BatchNorm2d(5));
  nn::LSTM lstm = register_module("lstm", nn::LSTM(nn::LSTMOptions(6, 7).num_layers(2)));
  nn::TransformerEncoderLayer encoder =
      register_module("encoder", nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(6, 2)));
  nn::Linear xavier = register_module("xavier", nn::Linear(9, 4));
  nn::Linear orthogonal = register_module("orthogonal", nn::Linear(8, 5));
  nn::Linear head = register_module("head", nn::Linear(nn::LinearOptions(6, 13).bias(false)));
  nn::Linear half = register_module("half", nn::Linear(17, 3));

  ManyInitsImpl() {
    nn::init::xavier_normal_(xavier->weight);
    nn::init::orthogonal_(orthogonal->weight);
    register_parameter("tied", head->weight);
    half->to(torch::kBFloat16);
    const torch::NoGradGuard no_grad;
    xavier->bias.copy_(torch::linspace(0, 1, 4) * torch::randn({4}).abs().max());
    const double drop = torch::linspace(0, 0.3, 4)[2].item<double>();
    register_parameter("scalar", torch::tensor(drop));
    register_parameter("mixed", torch::randn({3, 4}).mul_(0.5) + torch::rand({4}));
    register_parameter("permutation", torch::randperm(11), /*requires_grad=*/false);
    register_buffer("listed", torch::tensor({0.485, 0.456, 0.406}));
    register_buffer("vector", torch::tensor(std::vector<float>{1, 2, 3}) * 2);
    auto positions = torch::zeros({7, 6});
    const auto angle = torch::arange(7, torch::kFloat).unsqueeze(1) * torch::exp(torch::arange(0, 6, 2) * -0.3);
    positions.slice(1, 0, 6, 2).copy_(torch::sin(angle));
    positions.slice(1, 1, 6, 2).copy_(torch::cos(angle));
    for (int row = 0; row < 3; ++row) positions[row].add_(row);
    register_buffer("positions", positions);
    register_buffer("chosen", torch::nonzero(torch::randn({20}) > 0));
  }
};
TORCH_MODULE(ManyInits);

std::vector<Tensor> all_tensors(const nn::Module& module) {
  auto tensors = module.parameters();
  for (auto& buffer : module.buffers()) tensors.push_back(std::move(buffer));
  return tensors;
}

void expect_equal_whole(const nn::Module& expected, const nn::Module& found) {
  for (const auto& item : expected.named_parameters()) {
    const auto tensor = found.named_parameters()[item.key()];
    EXPECT_TRUE(torch::equal(item.value(), full_tensor(tensor))) << item.key();
    EXPECT_EQ(item.value().requires_grad(), tensor.requires_grad()) << item.key();
  }
  for (const auto& item : expected.named_buffers())
    EXPECT_TRUE(torch::equal(item.value(), found.named_buffers()[item.key()])) << item.key();
}

template <class Model>
Model deferred(int seed = 7) {
  torch::manual_seed(seed);
  return deferred_init([] { return Model(); });
}

TEST(DeferredInit, HasNoMemoryThenTheValuesOfOrdinaryConstruction) {
  torch::manual_seed(7);
  const ManyInits ordinary;
  const auto next = torch::rand({5});
  auto model = deferred<ManyInits>();
  EXPECT_TRUE(torch::equal(next, torch::rand({5}))) << "random numbers go on as after ordinary construction";
  for (const auto& item : model->named_parameters())
    EXPECT_EQ(item.value().is_meta(), item.key() != "scalar") << item.key();  // torch::tensor is not deferred
  const auto before = all_tensors(*model);
  materialize(*model);
  const auto after = all_tensors(*model);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(before[i].is_same(after[i]));
  expect_equal_whole(*ordinary, *model);
  EXPECT_TRUE(model->head->weight.is_same(model->named_parameters()["tied"]));
}

TEST(DeferredInit, IsShardedToTheBitsOfOrdinaryConstructionAtAnyWorldSize) {
  torch::manual_seed(7);
  const ManyInits ordinary;
  for (const int world : worlds_up_to(8)) {
    SCOPED_TRACE(world);
    std::vector<ManyInits> models;  // built here, because threads share the random state
    for (int r = 0; r < world; ++r) models.push_back(deferred<ManyInits>());
    run_thread_ranks(world, [&](int r) {
      auto model = std::exchange(models[static_cast<size_t>(r)], nullptr);
      shard_children_then_root(*model, {});
      for (const auto& tensor : all_tensors(*model)) EXPECT_FALSE(tensor.is_meta());
      expect_equal_whole(*ordinary, *model);
    });
  }
}

TEST(DeferredInit, HoldsOneWholeParameterAtATime) {
  struct TallImpl : nn::Module {
    TallImpl() {
      for (int i = 0; i < 6; ++i) register_module(std::to_string(i), nn::Linear(256, 512));
    }
  };
  constexpr int64_t kLargest = 256 * 512 * 4;
  run_thread_ranks(2, [&](int) {
    const CountedMemory memory;
    const auto model = build_alike([] { return deferred_init([] { return std::make_shared<TallImpl>(); }); });
    EXPECT_LT(memory.counts->now, kLargest / 2);
    barrier();  // computing values draws from the generator that threads share
    const auto group = fully_shard(*model, {.strategy = Strategy::kFullShard});
    const auto rows = group.stats().rows.current;
    EXPECT_LE(rows, 6 * kLargest / 2 + 6 * 4096);
    EXPECT_LT(memory.counts->peak, rows + 5 * kLargest / 4);
    EXPECT_GT(memory.counts->peak, kLargest) << "the measure sees it";
  });
}

TEST(DeferredInit, FromAnotherSeedOrWithAnotherNumberOnOneRankIsAMismatch) {
  const auto deferred_with = [](double number) {
    torch::manual_seed(1);
    return deferred_init([&] {
      SmallNet net;
      nn::init::constant_(net->head->weight, number);
      return net;
    });
  };
  for (auto& models : {std::vector{deferred<SmallNet>(1), deferred<SmallNet>(2)},
                       std::vector{deferred_with(0.5), deferred_with(0.5 + 1e-7)}})
    run_thread_ranks(2, [&](int r) {
      auto model = models[static_cast<size_t>(r)];
      EXPECT_THROW(fully_shard(model), Mismatch);
    });
}

TEST(DeferredInit, OfTwoParametersOnOneMemoryIsRefusedAsOtherwise) {
  auto model = deferred_init([] {
    nn::Linear linear(4, 4);
    linear->register_parameter("view", linear->weight.detach());
    return linear;
  });
  run_thread_ranks(1, [&](int) {
    EXPECT_THAT(error_of<UsageError>([&] { fully_shard(model); }), AllOf(HasSubstr("'weight'"), HasSubstr("'view'")));
  });
}

TEST(DeferredInit, WhatIsWrittenAfterItIsAnErrorAsItWouldBeLost) {
  const torch::NoGradGuard no_grad;
  const std::pair<const char*, void (*)(SmallNetImpl&)> writes[] = {
      {"first.weight", [](SmallNetImpl& net) { nn::init::ones_(net.first->weight); }},
      {"head.weight", [](SmallNetImpl& net) { net.head->weight[1].mul_(2); }},
      {"seen", [](SmallNetImpl& net) { net.named_buffers()["seen"].fill_(3); }},
  };
  for (const auto& [name, write] : writes) {
    const auto net = deferred_init(net_with_seen);
    write(*net);
    const auto says = AllOf(HasSubstr(c10::str("'", name, "' was written after fsdp::deferred_init")),
                            HasSubstr("fsdp::initialize after fully_shard"));
    EXPECT_THAT(error_of([&] { materialize(*net); }), says);
    run_thread_ranks(1, [&](int) { EXPECT_THAT(error_of([&] { fully_shard(*net); }), says); });
  }
  const auto read = deferred_init(net_with_seen);
  static_cast<void>(read->first->weight.sum());
  EXPECT_EQ(error_of([&] { materialize(*read); }), "");
}

}  // namespace
}  // namespace fsdp::test
