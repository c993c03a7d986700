// Tests of rows of low precision, of rows of several dtypes in one param group, and of what low precision saves while
// rows stay fp32: bytes on the wire, in memory that ranks share, and under autocast.

#include <ATen/autocast_mode.h>
#include <fsdp/optim.h>
#include <gmock/gmock.h>

#include <atomic>

#include "api/group_view.h"
#include "runtime/cost_net.h"
#include "runtime/param_group.h"
#include "support/precision_net.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

constexpr int kLowSteps = 3;
const auto kLowOptions = torch::optim::SGDOptions(0.1).momentum(0.9);

// Trains the oracle for rows of low precision: one model of that dtype, which computes the ranks' gradients one after
// the other. It uses fsdp's optimizer, which rounds all elements in the same way; torch's rounds the last ones
// differently.
std::vector<Tensor> train_low(const Training<MixedNetImpl>& training, c10::ScalarType reduced, int world) {
  const auto net = build_alike([&] { return build_model(training); });
  const auto optimizer = training.optimizer(net->parameters());
  for (int step = 0; step < training.steps; ++step) {
    std::vector<std::vector<Tensor>> gradients(net->parameters().size());
    for (int rank = 0; rank < world; ++rank) {
      net->zero_grad();
      mixed_net_loss(*net, {step, rank * 2, 2}).backward();
      for (size_t i = 0; i < gradients.size(); ++i)
        if (const auto& gradient = net->parameters()[i].grad(); gradient.defined())
          gradients[i].push_back(gradient.to(reduced));
    }
    for (size_t i = 0; i < gradients.size(); ++i)
      if (!gradients[i].empty())
        net->parameters()[i].mutable_grad() = mean_of(gradients[i], test_hosts(world)).to(training.dtype);
    optimizer->step();
  }
  return net->parameters();
}

TEST(PrecisionOfRows, MayBeLowAsInFairseqsFp16Training) {
  for (const auto dtype : {torch::kHalf, torch::kBFloat16})
    for (const auto reduced : {dtype, torch::kFloat}) {
      constexpr int world = 3;
      SCOPED_TRACE(c10::str(dtype, " reduced in ", reduced));
      Training<MixedNetImpl> training{
          .build = [] { return std::make_shared<MixedNetImpl>(); },
          .shard =
              [&](MixedNetImpl& net) {
                FullyShardOptions options;
                if (reduced != dtype) options.mp_policy = MixedPrecisionPolicy{.reduce_dtype = reduced};
                return shard_mixed_net(net, options);
              },
          .loss = mixed_net_loss,
          .steps = kLowSteps,
          .dtype = dtype,
          .optimizer = [](auto parameters) { return std::make_unique<optim::SGD>(parameters, kLowOptions); }};
      const auto expected = train_low(training, reduced, world);
      run_thread_ranks(world, [&](int) {
        const auto net = build_alike([&] { return build_model(training); });
        const auto found = train_sharded(training, *net);
        expect_same_bits({found.losses, expected}, found);
        EXPECT_EQ(net->head->weight.grad().scalar_type(), dtype);
        EXPECT_EQ(group_of(*net).stats().rows.current % 2, 0);
      });
    }
}

// One param group with parameters of every kind of dtype.
struct KindsImpl : nn::Module {
  static Tensor values(int64_t rows, c10::ScalarType dtype) {
    return samples({static_cast<int>(rows), 0, rows}, {3}).to(dtype);
  }
  Tensor half = register_parameter("half", values(5, torch::kHalf));
  Tensor low = register_parameter("low", values(6, torch::kBFloat16));
  Tensor single = register_parameter("single", values(7, torch::kFloat));
  Tensor twice = register_parameter("twice", values(8, torch::kDouble));
  Tensor tiny = register_parameter("tiny", torch::arange(27).reshape({9, 3}).to(torch::kFloat8_e4m3fn), false);
  Tensor kind = register_parameter("kind", torch::arange(-15, 15).reshape({10, 3}).to(torch::kChar), false);
  Tensor loss(int step) {
    Tensor sum = torch::zeros({}, torch::kDouble);
    for (const auto& parameter : {half, low, single, twice, tiny, kind})
      sum = sum + (parameter.to(torch::kDouble).square() * (step + 1)).sum();
    return sum;
  }
};

TEST(PrecisionOfRows, OfSeveralDtypesMakeOneGroup) {
  run_thread_ranks(3, [&](int r) {
    const auto expected = std::make_shared<KindsImpl>(), net = std::make_shared<KindsImpl>();
    const auto group = fully_shard(static_cast<nn::Module&>(*net));
    expected->loss(0).backward();
    in_scope(group, [&] {
      for (size_t i = 0; i < net->parameters().size(); ++i)
        EXPECT_EQ(net->parameters()[i].scalar_type(), expected->parameters()[i].scalar_type());
      return net->loss(0);
    }).backward();
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      const auto parameter = net->parameters()[i];
      EXPECT_TRUE(torch::equal(full_tensor(parameter).to(torch::kDouble),
                               expected->parameters()[i].detach().to(torch::kDouble)))
          << "parameter " << i << " on rank " << r;
      if (!parameter.requires_grad()) continue;
      EXPECT_EQ(parameter.grad().scalar_type(), parameter.scalar_type());
      // In fp16 part of the divisor is applied before the sum, and a third has no exact value in fp16 and bf16.
      EXPECT_LT(relative_difference(expected->parameters()[i].grad().to(torch::kDouble),
                                    full_grad(parameter).to(torch::kDouble)),
                0.01)
          << "parameter " << i << " on rank " << r;
    }
  });
}

TEST(PrecisionOfRows, OfSeveralDtypesComputeAlikeByAPolicy) {
  run_thread_ranks(2, [](int) {
    const auto net = std::make_shared<KindsImpl>();
    const auto group = fully_shard(static_cast<nn::Module&>(*net),
                                   {.mp_policy = MixedPrecisionPolicy{.param_dtype = torch::kBFloat16}});
    {
      ForwardScope scope(group);
      for (const auto& parameter : {net->half, net->low, net->single, net->twice})
        EXPECT_EQ(parameter.scalar_type(), torch::kBFloat16);
      EXPECT_EQ(net->kind.scalar_type(), torch::kChar);
      EXPECT_TRUE(torch::equal(net->kind.detach().clone(), KindsImpl().kind)) << "frozen integers stay as they are";
      net->loss(0).backward();
    }
    for (const auto& parameter : {net->half, net->low, net->single, net->twice})
      EXPECT_EQ(parameter.grad().scalar_type(), parameter.scalar_type()) << "as the rows";
  });
}

TEST(PrecisionOfRows, IsKeptByNameToo) {
  MixedPrecisionPolicy policy{.param_dtype = torch::kBFloat16};
  policy.keeps_precision = [](const nn::Module&, const std::string& name) { return name == "bias"; };
  run_thread_ranks(2, [&](int) {
    const auto net = build_alike([] { return std::make_shared<MixedNetImpl>(); });
    const auto group = shard_mixed_net(*net, {.mp_policy = policy});
    const ForwardScope scope(group);
    EXPECT_EQ(net->head->weight.scalar_type(), torch::kBFloat16);
    EXPECT_EQ(net->head->bias.scalar_type(), torch::kFloat);
    EXPECT_EQ(net->norm->bias.scalar_type(), torch::kFloat);
    EXPECT_EQ(net->blocks[1]->as<nn::Linear>()->weight.scalar_type(), torch::kBFloat16);
  });
}

// The rows divide evenly, so no dtype needs padding.
struct EvenRowsImpl : nn::Module {
  nn::ModuleList layers;
  EvenRowsImpl() {
    register_module("layers", layers);
    for (int i = 0; i < 4; ++i) layers->push_back(nn::Linear(nn::LinearOptions(48, 48).bias(false)));
  }
  Tensor loss(int step) {
    auto x = samples({step, rank() * 2, 2}, {48}, torch::kFloat);
    for (const auto& layer : *layers) x = torch::tanh(layer->as<nn::Linear>()->forward(x));
    return x.square().mean();
  }
};

struct Moved {
  uint64_t gathered = 0, reduced = 0;
  int64_t between_hosts = 0;
};

// Calls `begin` before and `end` after the forward and backward of rank 1's second step.
void around_a_step(std::optional<MixedPrecisionPolicy> policy, const ThreadRanksOptions& ranks, int world,
                   const std::function<void()>& begin, const std::function<void()>& end) {
  run_thread_ranks(
      world,
      [&](int r) {
        const auto net = build_alike([] { return std::make_shared<EvenRowsImpl>(); });
        const FullyShardOptions options{.reshard_after_forward = Reshard::always(), .mp_policy = policy};
        for (const auto& layer : *net->layers) fully_shard(*layer, options);
        const auto group = fully_shard(static_cast<nn::Module&>(*net), options);
        const auto backward = [&](int step) {
          const auto loss = in_scope(group, [&] { return net->loss(step); });
          loss.backward();
        };
        backward(0);
        if (r == 1) begin();
        backward(1);
        if (r == 1) end();
      },
      ranks);
}

// Returns the bytes that rank 1 moves in that step. The communicator is not recorded, because a recording one counts no
// traffic.
Moved moved_with(std::optional<MixedPrecisionPolicy> policy, const std::vector<int>& hosts) {
  const auto world = static_cast<int>(hosts.size());
  const ThreadRanksOptions plain{.backend = hosts.back() > 0 ? "hierarchical" : "gloo", .hosts = hosts};
  Recorded recorded(world);
  recorded.options.backend = plain.backend;
  recorded.options.hosts = hosts;
  Moved moved;
  around_a_step(policy, recorded.options, world, [&] { recorded.clear(1); },
                [&] {
                  const auto& log = recorded.log(1);
                  moved = {log.bytes("all_gather"), log.bytes("reduce_scatter")};
                });
  Traffic before;
  around_a_step(policy, plain, world, [&] { before = traffic(); },
                [&] { moved.between_hosts = (traffic() - before).between_hosts.sent; });
  return moved;
}

TEST(PrecisionOnTheWire, HalvesTheBytesOfGathersAndReductions) {
  const MixedPrecisionPolicy low{.param_dtype = torch::kBFloat16},
      low_gathers{.param_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat},
      low_sums{.reduce_dtype = torch::kHalf};
  for (const auto& hosts : {std::vector<int>{0, 0, 0}, std::vector<int>{0, 0, 1, 1}}) {
    // Besides the gradient of each of the four weights, ranks exchange the number of ranks that have one.
    const uint64_t counts = 4 * sizeof(float) * hosts.size();
    const auto full = moved_with({}, hosts);
    const auto both = moved_with(low, hosts), gathers = moved_with(low_gathers, hosts),
               sums = moved_with(low_sums, hosts);
    EXPECT_EQ(both.gathered * 2, full.gathered);
    EXPECT_EQ((both.reduced - counts) * 2, full.reduced - counts);
    EXPECT_EQ(gathers.gathered * 2, full.gathered);
    EXPECT_EQ(gathers.reduced, full.reduced);
    EXPECT_EQ(sums.gathered, full.gathered);
    EXPECT_EQ((sums.reduced - counts) * 2, full.reduced - counts);
    if (hosts.back() == 0) continue;
    constexpr int64_t kCounts = 4 * sizeof(float);  // from this rank to its counterpart on the other host
    EXPECT_GT(full.between_hosts, 0);
    EXPECT_EQ((both.between_hosts - kCounts) * 2, full.between_hosts - kCounts);
  }
}

TEST(PrecisionInSharedMemory, WholeParametersAreThereOncePerHostBesideTheRows) {
  constexpr int kWorld = 3;
  std::atomic<int64_t> whole = 0, rows = 0;
  int64_t all = 0;
  run_thread_ranks(kWorld,
                   [&](int r) {
                     const auto net = build_alike([] { return std::make_shared<MixedNetImpl>(); });
                     const auto group =
                         shard_mixed_net(*net, {.mp_policy = MixedPrecisionPolicy{.param_dtype = torch::kBFloat16}});
                     whole += group.stats().whole.current;
                     rows += group.stats().rows.current;
                     if (r == 0)
                       for (const auto& part : param_groups(group))
                         for (const auto& flat : part->flats()) all += static_cast<int64_t>(flat.whole().bytes());
                     const ForwardScope scope(group);
                     mixed_net_loss(*net, {0, r * 2, 2}).backward();
                     EXPECT_EQ(group.stats().gathers, 0);
                   },
                   {.backend = "shm"});
  EXPECT_EQ(whole, all) << "each rank counts its slice";
  EXPECT_EQ(rows, 2 * all);
}

// Counts the bytes that LibTorch's allocator has given to this thread and that this thread has not freed.
struct Allocated : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override { now += bytes; }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t now = 0;
};

// Returns the bytes that forward keeps in the graph of a layer whose weight is far larger than its input.
int64_t kept_by_graph(const std::optional<MixedPrecisionPolicy>& policy, bool has_autocast) {
  int64_t kept = 0;
  run_thread_ranks(2,
                   [&](int r) {
                     const auto net = build_alike([] { return std::make_shared<nn::LinearImpl>(256, 512); });
                     auto model = fully_shard(nn::Linear(net),
                                              {.reshard_after_forward = Reshard::always(), .mp_policy = policy});
                     at::autocast::set_autocast_enabled(at::kCPU, has_autocast);
                     const auto allocated = std::make_shared<Allocated>();
                     const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, allocated);
                     Tensor out = model(torch::ones({1, 256}).requires_grad_());  // the input's gradient needs it
                     // The group that was read last stays unsharded until another one is read.
                     if (r == 0) kept = allocated->now - model.stats().whole.current;
                     out.sum().backward();
                     at::autocast::set_autocast_enabled(at::kCPU, false);
                   },
                   {.backend = "gloo"});
  return kept;
}

// If whole parameters have autocast's dtype, autocast has nothing to cast.
TEST(PrecisionUnderAutocast, KeepsNoWholeCopiesAliveWithAPolicyOfItsDtype) {
  constexpr int64_t kWeight = 256 * 512 * 2;
  const MixedPrecisionPolicy low{.param_dtype = torch::kBFloat16};
  EXPECT_LT(kept_by_graph(low, false), kWeight / 8);
  EXPECT_LT(kept_by_graph(low, true), kWeight / 8);
  EXPECT_GT(kept_by_graph({}, true), kWeight) << "the measure sees it: without a policy the graph has autocast's copy";
}

}  // namespace
}  // namespace fsdp::test
