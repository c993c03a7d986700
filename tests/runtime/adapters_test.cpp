// Adapters that train beside frozen weights (LoRA): in one group with them, in groups of their own.

#include "support/oracle.h"
#include "support/recorded_ranks.h"

namespace fsdp::test {
namespace {

using torch::Tensor;

// y = base(x) + b(a(x)): the base is frozen, the adapter trains.
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
  Tensor forward(const Tensor& x) { return torch::tanh(base->forward(x) + up->forward(down->forward(x))); }
};
TORCH_MODULE(Adapted);

struct AdaptedNet : torch::nn::Module {
  torch::nn::ModuleList layers;
  AdaptedNet() {
    register_module("layers", layers);
    for (int i = 0; i < 3; ++i) layers->push_back(Adapted());
  }
  Tensor forward(Tensor x) {
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
    expect_equals_unsharded(program, {1, 3});
    expect_equals_unsharded(program, {2}, {.reshard_after_forward = Reshard::always()});
  }
}

TEST(Adapters, AloneAreReducedAndHaveGradients) {
  for (const auto cut : kCuts) {
    SCOPED_TRACE(c10::str("cut ", static_cast<int>(cut)));
    Recorded recorded(2);
    const auto train = [&](int r) {
      const auto net = build_alike([] { return std::make_shared<AdaptedNet>(); });
      shard_adapted(*net, cut, {});
      recorded.clear(r);
      Tensor loss;
      {
        ForwardScope scope(group_of(*net));
        loss = net->forward(samples({0, r * 2, 2}, {6}, torch::kFloat)).square().mean();
      }
      loss.backward();
      const uint64_t adapters = 3 * (2 * 6 + 6 * 2) * sizeof(float);
      EXPECT_LE(recorded.log(r).bytes("reduce_scatter"), adapters + adapters / 2) << "padding included";
      EXPECT_EQ(recorded.count(r, "reduce_scatter"), cut == Cut::kOneGroup ? 1 : 3) << "frozen groups reduce nothing";
      for (const auto& parameter : net->named_parameters())
        EXPECT_EQ(parameter.value().grad().defined(), parameter.key().find("base") == std::string::npos);
    };
    run_thread_ranks(2, train, recorded.options);
  }
}

}  // namespace
}  // namespace fsdp::test
