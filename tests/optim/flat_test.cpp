// Tests of what all optimizers of fsdp::optim have in common: the same bits on any ranks, factors of gradients, state
// in other dtypes.

#include <gmock/gmock.h>

#include "memory/flat_buffer.h"
#include "optim/every_optimizer.h"
#include "support/oracle.h"

#include <set>
#include <sstream>

namespace fsdp::test {
namespace {

using optim::StateOptions;
using torch::Tensor;

// A net with rows that no number of ranks divides, a matrix of long rows, a channels_last kernel and a scalar.
struct ShapesNet : torch::nn::Module {
  c10::ScalarType precision;  // dtype of gradients
  explicit ShapesNet(c10::ScalarType dtype) : precision(dtype) {
    int index = 0;
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{37, 5}, {3, 331}, {150}, {6, 4, 3, 3}, {}}) {
      auto values = whole_values(index, sizes, 0).to(dtype);
      if (sizes.size() == 4) values = values.contiguous(torch::MemoryFormat::ChannelsLast);
      register_parameter("p" + std::to_string(index++), values);
    }
  }
  static Tensor whole_values(int index, const std::vector<int64_t>& sizes, int step) {
    return samples({step, index, 1}, sizes).squeeze(0).reshape(sizes) + 0.01;
  }
  // Sets gradients that are the same for any number of ranks, each in its own memory.
  void set_gradients(int step, double scale = 1) {
    int index = 0;
    for (const auto& parameter : parameters()) {
      auto sizes = global_sizes(parameter);
      auto whole = (whole_values(index++, sizes, step) * scale).to(precision).to(parameter.scalar_type());
      if (sizes.size() == 4) whole = whole.contiguous(torch::MemoryFormat::ChannelsLast);
      if (sizes.empty()) whole = whole.reshape({1});
      const auto rows = local_rows(parameter);
      parameter.mutable_grad() = whole.narrow(0, rows.first, rows.count).clone();
    }
  }
  // Makes backward leave gradients that are the same for 1, 2 and 4 ranks. They are contiguous in memory.
  void leave_gradients(int step) {
    const auto group = group_of(*this);
    Tensor loss;
    {
      ForwardScope scope(group);
      loss = torch::zeros({});
      int index = 0;
      for (const auto& parameter : parameters()) {
        EXPECT_EQ(parameter.scalar_type(), precision);
        loss = loss + (parameter * whole_values(index++, parameter.sizes().vec(), step).to(precision)).sum();
      }
    }
    loss.backward();
  }
  std::vector<Tensor> whole() const {
    std::vector<Tensor> all;
    for (const auto& parameter : parameters()) all.push_back(full_tensor(parameter));
    return all;
  }
};

void expect_equal(const std::vector<Tensor>& expected, const std::vector<Tensor>& found) {
  ASSERT_EQ(expected.size(), found.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(torch::equal(expected[i], found[i])) << "tensor " << i;
}

using Act = std::function<void(ShapesNet&, AnyOptimizer&)>;

// Returns rank 0's whole parameters after `act`.
std::vector<Tensor> trained(const OptimizerCase& optimizer, int world, c10::ScalarType dtype, const StateOptions& state,
                            const Act& act, const FullyShardOptions& options = {}) {
  std::vector<Tensor> found;
  run_thread_ranks(world, [&](int rank) {
    ShapesNet net(dtype);
    fully_shard(static_cast<torch::nn::Module&>(net), options);
    auto made = optimizer.make(net.parameters(), state);
    act(net, made);
    auto whole = net.whole();
    if (rank == 0) found = std::move(whole);
  });
  return found;
}

void three_steps(ShapesNet& net, AnyOptimizer& optimizer) {
  for (int step = 1; step <= 3; ++step) {
    net.set_gradients(step);
    optimizer.torchs->step();
  }
}

const std::vector<std::pair<c10::ScalarType, StateOptions>> kForms{
    {torch::kFloat, {}},
    {torch::kDouble, {}},
    {torch::kBFloat16, {}},
    {torch::kHalf, {}},
    {torch::kFloat, {.state_dtype = torch::kBFloat16}},
    {torch::kBFloat16, {.state_dtype = torch::kFloat}},
    {torch::kBFloat16, {.stochastic_rounding = true, .seed = 5}},
    {torch::kBFloat16, {.state_dtype = torch::kFloat, .stochastic_rounding = true}}};

// Strategies are compared in the last form only, because most values have to be equal there.
TEST(OptimFlat, EveryWorldAndStrategyGivesTheSameBits) {
  for (const auto& optimizer : every_optimizer())
    for (const auto& [dtype, state] : kForms) {
      if (!optimizer.takes(dtype, state)) continue;
      SCOPED_TRACE(c10::str(optimizer.name, ", ", dtype, ", rounds stochastically: ", state.stochastic_rounding));
      const auto expected = trained(optimizer, 1, dtype, state, three_steps);
      for (const int world : worlds_up_to(4))
        if (world > 2) expect_equal(expected, trained(optimizer, world, dtype, state, three_steps));
      if (&state != &kForms.back().second) continue;
      for (const auto strategy :
           {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kShardOptimizer, Strategy::kReplicate})
        expect_equal(expected, trained(optimizer, 2, dtype, state, three_steps, {.strategy = strategy}));
    }
}

// Returns the number of planes. Rows of one length lie in one plane.
int planes_with_rows(const ShapesNet& net) {
  std::set<const void*> buffers;
  for (const auto& parameter : net.parameters())
    if (parameter.numel() > 0) buffers.insert(memory::buffer_of(parameter).get());
  return static_cast<int>(buffers.size());
}

// Returns the number of passes over memory that a step takes.
int passes_of_a_step(AnyOptimizer& made) { return calls_of_a_step(*made.torchs, "fsdp::optim::"); }

// In a pass over several parameters, each one gets the random numbers that it gets in its own pass.
TEST(OptimFlat, OnePassOverAGroupGivesTheBitsOfOneForEachParameter) {
  for (const auto& optimizer : every_optimizer())
    for (const auto& [dtype, state] : kForms) {
      if (!state.stochastic_rounding || !optimizer.takes(dtype, state)) continue;
      SCOPED_TRACE(c10::str(optimizer.name, ", ", dtype));
      const auto expected = trained(optimizer, 1, dtype, state, [](ShapesNet& net, AnyOptimizer& made) {
        net.set_gradients(1);
        EXPECT_EQ(passes_of_a_step(made), 5);
      });
      const auto in_one_pass = [](ShapesNet& net, AnyOptimizer& made) {
        net.leave_gradients(1);
        EXPECT_EQ(passes_of_a_step(made), planes_with_rows(net)) << "rank " << rank();
      };
      for (const int world : {1, 2}) expect_equal(expected, trained(optimizer, world, dtype, state, in_one_pass));
    }
}

TEST(OptimFlat, AFactorGivesTheBitsThatMultiplyingGradientsBeforeGives) {
  constexpr double kScale = 1.0 / 48;  // not a power of two
  const auto scaled_steps = [](bool by_factor) {
    return [=](ShapesNet& net, AnyOptimizer& made) {
      for (int step = 1; step <= 3; ++step) {
        net.set_gradients(step, 1024);
        if (!by_factor)
          for (const auto& parameter : net.parameters()) parameter.mutable_grad().mul_(kScale);
        const auto before = net.parameters()[0].grad().clone();
        by_factor ? made.flat->step_scaled(kScale) : made.torchs->step();
        EXPECT_TRUE(torch::equal(before, net.parameters()[0].grad())) << "gradients stay";
      }
    };
  };
  for (const auto& optimizer : every_optimizer())
    for (const auto dtype : {torch::kFloat, torch::kDouble}) {
      SCOPED_TRACE(optimizer.name);
      expect_equal(trained(optimizer, 1, dtype, {}, scaled_steps(false)),
                   trained(optimizer, 1, dtype, {}, scaled_steps(true)));
    }
}

TEST(OptimFlat, ClippingByAFactorGivesTheBitsOfClippingGradients) {
  const auto& adam = every_optimizer()[2];
  for (const double max_norm : {0.5, 1e9}) {
    const auto clipped = trained(adam, 3, torch::kFloat, {}, [=](ShapesNet& net, AnyOptimizer& made) {
      net.set_gradients(1);
      clip_grad_norm_(group_of(net), max_norm);
      made.torchs->step();
    });
    expect_equal(clipped, trained(adam, 3, torch::kFloat, {}, [=](ShapesNet& net, AnyOptimizer& made) {
                   net.set_gradients(1);
                   const double norm = get_total_norm(group_of(net));
                   made.flat->step_scaled(clip_coefficient(norm, max_norm));
                   EXPECT_EQ(norm, clip_grad_norm_(group_of(net), max_norm));
                 }));
  }
  EXPECT_EQ(clip_coefficient(3, 1), 1 / (3 + 1e-6));
  EXPECT_EQ(clip_coefficient(0.5, 1), 1);
  EXPECT_TRUE(std::isnan(clip_coefficient(std::nan(""), 1)));
}

// Torch's schedulers use only torch::optim::Optimizer. A step with a learning rate of 0 leaves the values as they are.
TEST(OptimFlat, SchedulersOfTorchSetTheRateOfEveryKindThatAStepTakes) {
  using torch::optim::ReduceLROnPlateauScheduler;
  for (const auto& optimizer : every_optimizer()) {
    SCOPED_TRACE(optimizer.name);
    const auto parameter = torch::ones({5}).requires_grad_();
    parameter.mutable_grad() = torch::ones({5});
    auto first = optimizer.make({parameter}, {}), second = optimizer.make({parameter}, {});
    auto& rate = first.torchs->param_groups()[0].options();
    auto& other = second.torchs->param_groups()[0].options();
    const double lr = rate.get_lr();
    torch::optim::StepLR schedule(*first.torchs, /*step_size=*/2, /*gamma=*/0.5);  // its first step does not count
    ReduceLROnPlateauScheduler plateau(*second.torchs, ReduceLROnPlateauScheduler::min, /*factor=*/0.1, /*patience=*/1);
    for (const auto& [step_rate, plateau_rate] : {std::pair(1.0, 1.0), {1.0, 1.0}, {0.5, 0.1}, {0.5, 0.1}}) {
      first.torchs->step();
      schedule.step();
      plateau.step(1.0F);
      EXPECT_EQ(rate.get_lr(), lr * step_rate);
      EXPECT_NEAR(other.get_lr(), lr * plateau_rate, 1e-7 * lr);
    }
    const auto before = parameter.detach().clone();
    rate.set_lr(0);
    first.torchs->step();
    EXPECT_TRUE(torch::equal(before, parameter.detach()));
  }
}

TEST(OptimFlat, StateHasTheBytesOfItsDtypeAndIsCounted) {
  for (const auto& optimizer : every_optimizer())
    for (const auto& [dtype, state] : kForms) {
      if (!optimizer.takes(dtype, state)) continue;
      SCOPED_TRACE(c10::str(optimizer.name, ", ", dtype));
      run_thread_ranks(2, [&, dtype = dtype, state = state](int) {
        ShapesNet net(dtype);
        const auto group = fully_shard(static_cast<torch::nn::Module&>(net));
        int64_t elements = 0;
        for (const auto& parameter : net.parameters()) elements += parameter.numel();
        {
          auto made = optimizer.make(net.parameters(), state);
          net.set_gradients(1);
          made.torchs->step();
          const auto of_one = static_cast<int64_t>(c10::elementSize(state.state_dtype.value_or(dtype)));
          const int64_t bytes = elements * optimizer.states * of_one, counted = group.stats().optimizer.current;
          EXPECT_EQ(made.flat->state_bytes(), bytes);
          EXPECT_GE(counted, bytes);
          EXPECT_LE(counted, bytes + optimizer.states * 5 * 64) << "64 bytes of padding for each parameter";
        }
        EXPECT_EQ(group.stats().optimizer.current, 0);
      });
    }
}

// Whole values are bf16 and rows are fp32, so a step computes in fp32.
TEST(OptimFlat, RowsOfWholeValuesInBf16AreSteppedInFp32) {
  for (const auto& optimizer : every_optimizer()) {
    SCOPED_TRACE(optimizer.name);
    const auto expected = trained(optimizer, 2, torch::kFloat, {}, [](ShapesNet& net, AnyOptimizer& made) {
      net.precision = torch::kBFloat16;
      three_steps(net, made);
    });
    const FullyShardOptions bf16{.mp_policy = MixedPrecisionPolicy{.param_dtype = torch::kBFloat16}};
    const auto leave_gradients = [](ShapesNet& net, AnyOptimizer& made) {
      net.precision = torch::kBFloat16;
      for (int step = 1; step <= 3; ++step) {
        net.leave_gradients(step);
        EXPECT_EQ(net.parameters()[0].grad().scalar_type(), torch::kFloat);
        made.torchs->step();
        made.torchs->zero_grad();
      }
    };
    expect_equal(expected, trained(optimizer, 2, torch::kFloat, {}, leave_gradients, bf16));
  }
}

TEST(OptimFlat, StateOfAnotherDtypeGoesThroughFilesOfTorchs) {
  run_thread_ranks(2, [](int) {
    ShapesNet net(torch::kFloat), other(torch::kFloat);
    fully_shard(static_cast<torch::nn::Module&>(net));
    fully_shard(static_cast<torch::nn::Module&>(other));
    const StateOptions bf16{.state_dtype = torch::kBFloat16, .stochastic_rounding = true};
    const torch::optim::AdamWOptions options(0.01);
    optim::AdamW optimizer(net.parameters(), options, bf16), loaded(other.parameters(), options, bf16);
    torch::optim::AdamW torchs(other.parameters(), options);
    const auto step = [](ShapesNet& of, torch::optim::Optimizer& by, int number) {
      of.set_gradients(number);
      by.step();
    };
    step(net, optimizer, 1);
    std::stringstream file, again;
    torch::save(optimizer, file);
    again << file.str();
    copy_rows(net, other);
    torch::load(loaded, file);
    EXPECT_EQ(loaded.state_bytes(), optimizer.state_bytes());
    step(other, loaded, 2);
    const auto ours = other.whole();
    // From the state in the file, torch's optimizer makes the same next step, except for some roundings.
    torch::load(torchs, again);
    copy_rows(net, other);
    step(other, torchs, 2);
    const auto theirs = other.whole();
    step(net, optimizer, 2);
    expect_equal(net.whole(), ours);
    for (size_t i = 0; i < ours.size(); ++i)
      EXPECT_LT((ours[i] - theirs[i]).abs().max().item<double>(), 0.05 * 0.01) << "a part of the rate, tensor " << i;
  });
}

}  // namespace
}  // namespace fsdp::test
