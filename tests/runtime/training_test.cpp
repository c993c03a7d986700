// Compares sharded training with the unsharded oracle, for each way to group and to reshard, and with adapters beside
// frozen weights (LoRA).

#include "support/own_communicator.h"
#include "support/recorded_ranks.h"
#include "support/small_net.h"

namespace fsdp::test {
namespace {

Training<SmallNetImpl> steps_of_blocks(std::optional<Reshard> reshard = std::nullopt) {
  FullyShardOptions options;
  options.reshard_after_forward = reshard;
  auto training = small_net_training(options);
  training.steps = 3;
  return training;
}

TEST(Training, BlocksAndRootEqualTheUnshardedRun) {
  for (int world : worlds_up_to(8)) expect_training_equals_unsharded(steps_of_blocks(), world);
}

TEST(Training, ReshardAlwaysOrNeverEqualsTheUnshardedRun) {
  for (const auto& reshard : {Reshard::always(), Reshard::never()})
    expect_training_equals_unsharded(steps_of_blocks(reshard), 3);
}

TEST(Training, OneGroupEqualsTheUnshardedRun) {
  auto training = steps_of_blocks();
  training.shard = [](SmallNetImpl& net) { return fully_shard(static_cast<torch::nn::Module&>(net)); };
  expect_training_equals_unsharded(training, 3);
}

TEST(Training, TwoSubgroupsAtOnceEqualTheUnshardedRunsOfTheirModels) {
  auto one = steps_of_blocks(), other = steps_of_blocks();
  other.build = [] { return std::make_shared<SmallNetImpl>(/*dim=*/7, /*depth=*/2); };
  other.steps = 4;
  const std::vector<Training<SmallNetImpl>> trainings{one, other};
  std::vector<Outcome> expected;
  for (const auto& training : trainings) expected.push_back(train_unsharded(training, 2));
  std::vector<std::shared_ptr<SmallNetImpl>> models;  // built here, because threads share the random state
  for (size_t r = 0; r < 4; ++r) models.push_back(build_model(trainings[r % 2]));
  run_thread_ranks(4, [&](int r) {
    const auto which = static_cast<size_t>(r % 2);
    const ThreadProcessGroupGuard guard(default_process_group()->split({{0, 2}, {1, 3}}, "models"));
    const auto found = train_sharded(trainings[which], *models[static_cast<size_t>(r)]);
    expect_same_outcome(expected[which], found, trainings[which].tolerance);
  });
}

TEST(Training, Float32StaysWithinItsRounding) {
  auto training = steps_of_blocks();
  in_float32(training);
  expect_training_equals_unsharded(training, 3);
}

// The communicator uses the public header only.
TEST(Training, OverACommunicatorOfTheUsersOwnEqualsTheUnshardedRun) {
  const auto training = steps_of_blocks(Reshard::always());
  for (const int world : {2, 3}) {
    const auto expected = train_unsharded(training, world), over_gloo = train_on_thread_ranks(training, world,
                                                                                             {.backend = "gloo"});
    const auto found = train_on_thread_ranks(
        training, world,
        {.backend = "gloo",
         .wrap = [](auto inner, int) { return std::make_shared<CommunicatorOfMessages>(std::move(inner)); }});
    expect_same_outcome(expected, found, training.tolerance);
    expect_same_bits(over_gloo, found);
  }
}

TEST(Training, GivesTheSameBitsInTwoRunsAndOverSharedMemoryAndGloo) {
  auto training = steps_of_blocks();
  training.dtype = torch::kFloat;
  for (int world : worlds_up_to(8)) {
    SCOPED_TRACE("world " + std::to_string(world));
    const auto expected = train_on_thread_ranks(training, world, {.backend = "gloo"});
    for (const auto* backend : {"gloo", "shm"})
      expect_same_bits(expected, train_on_thread_ranks(training, world, {.backend = backend}));
  }
}

// Computes y = base(x) + b(a(x)). The base is frozen and the adapter trains.
struct AdaptedImpl : torch::nn::Module {
  torch::nn::Linear base, down, up;
  explicit AdaptedImpl(int64_t dim = 6)
      : base(dim, dim),
        down(torch::nn::LinearOptions(dim, 2).bias(false)),
        up(torch::nn::LinearOptions(2, dim).bias(false)) {
    register_module("base", base);
    register_module("down", down);
    register_module("up", up);
    for (auto& parameter : base->parameters()) parameter.requires_grad_(false);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::tanh(base->forward(x) + up->forward(down->forward(x)));
  }
};
TORCH_MODULE(Adapted);

struct AdaptedNet : torch::nn::Module {
  torch::nn::ModuleList layers;
  AdaptedNet() {
    register_module("layers", layers);
    for (int i = 0; i < 3; ++i) layers->push_back(Adapted());
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : *layers) x = layer->as<Adapted>()->forward(x);
    return x;
  }
};

enum class Cut { kOneGroup, kEachLayer, kAdaptersApart };
constexpr Cut kCuts[] = {Cut::kOneGroup, Cut::kEachLayer, Cut::kAdaptersApart};

void shard_adapted(AdaptedNet& net, Cut cut, const FullyShardOptions& options) {
  if (cut != Cut::kOneGroup)
    for (auto& layer : *net.layers) {
      auto& adapted = *layer->as<Adapted>();
      if (cut == Cut::kAdaptersApart) fully_shard({adapted.down.get(), adapted.up.get()}, options);
      fully_shard(adapted, options);
    }
  fully_shard(net, options);
}

TEST(Adapters, BesideAFrozenBaseEqualTheUnshardedRun) {
  for (const auto cut : kCuts) {
    SCOPED_TRACE(c10::str("cut ", static_cast<int>(cut)));
    auto program =
        regression<AdaptedNet>([] { return std::make_shared<AdaptedNet>(); },
                               [](AdaptedNet& net, const Batch& batch) { return net.forward(samples(batch, {6})); });
    program.shard = [cut](AdaptedNet& net, const FullyShardOptions& options) { shard_adapted(net, cut, options); };
    expect_equals_unsharded(program, {3});
    expect_equals_unsharded(program, {2}, {.reshard_after_forward = Reshard::always()});
  }
}

TEST(Adapters, AloneAreReducedAndHaveGradients) {
  for (const auto cut : kCuts) {
    SCOPED_TRACE(c10::str("cut ", static_cast<int>(cut)));
    Recorded recorded(2);
    run_thread_ranks_with(2, recorded.options, [&](int r) {
      const auto net = build_alike([] { return std::make_shared<AdaptedNet>(); });
      shard_adapted(*net, cut, {});
      recorded.clear(r);
      const auto x = samples({0, r * 2, 2}, {6}, torch::kFloat);
      in_scope(group_of(*net), [&] { return net->forward(x).square().mean(); }).backward();
      uint64_t adapters = 0;  // bytes of the adapters' planes and of the counts of ranks with a gradient
      const auto model = group_of(*net);
      for (const auto& group : param_groups(model)) {
        const auto trains = [&](size_t plane) {
          return group->params().slots_in(plane).front().requires_grad();
        };
        for (size_t plane = 0; plane < group->flats().size(); ++plane)
          if (trains(plane)) adapters += group->flats()[plane].whole().bytes();
        if (group->flats().size() > 0 && std::ranges::any_of(group->slots(), &runtime::ParamSlot::requires_grad))
          adapters += 2 * group->slots().size() * sizeof(float);
      }
      EXPECT_EQ(recorded.log(r).bytes("reduce_scatter"), adapters);
      EXPECT_EQ(recorded.count(r, "reduce_scatter"), cut == Cut::kOneGroup ? 1 : 3) << "frozen groups reduce nothing";
      for (const auto& parameter : net->named_parameters())
        EXPECT_EQ(parameter.value().grad().defined(), parameter.key().find("base") == std::string::npos);
    });
  }
}

}  // namespace
}  // namespace fsdp::test
