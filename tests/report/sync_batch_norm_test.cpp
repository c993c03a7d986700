// Tests of batch norms over several ranks. The oracle is torch's BatchNorm on the joined batch.

#include <gmock/gmock.h>

#include <numeric>

#include "support/oracle.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr int kSteps = 2;
constexpr double kTolerance = 1e-10;

// A case for one batch norm: the samples of each rank, and the module's options.
struct Trial {
  int dimensions;                // 1, 2 or 3 for BatchNorm1d, BatchNorm2d or BatchNorm3d
  std::vector<int64_t> samples;  // number of samples of each rank
  std::vector<int64_t> sizes;    // sizes of a sample, channels first
  nn::BatchNormOptions options{3};
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
  c10::ScalarType dtype = torch::kDouble;  // dtype of the input
  double tolerance = kTolerance;
};

template <class Norm>
std::shared_ptr<Norm> build_norm(const Trial& trial) {
  auto norm = std::make_shared<Norm>(trial.options);
  if (trial.dtype == torch::kDouble) norm->to(torch::kDouble);
  torch::NoGradGuard no_grad;
  for (auto& parameter : norm->parameters()) parameter.copy_(torch::linspace(0.5, 2, parameter.numel()));
  return norm;
}

// Returns the joined batch of all ranks, with a mean far from zero.
torch::Tensor joined_batch(const Trial& trial, int step) {
  const auto count = std::accumulate(trial.samples.begin(), trial.samples.end(), int64_t{0});
  return (samples({step, 0, count}, trial.sizes) * 2 + 5).to(trial.dtype);
}

torch::Tensor part_of_rank(const Trial& trial, const torch::Tensor& joined, int rank) {
  const auto first = std::accumulate(trial.samples.begin(), trial.samples.begin() + rank, int64_t{0});
  auto part = joined.narrow(0, first, trial.samples[static_cast<size_t>(rank)]).clone();
  return trial.format == at::MemoryFormat::Contiguous ? part : part.contiguous(trial.format);
}

struct Step {
  torch::Tensor output, input_grad;
};

template <class Norm>
Step step_of(Norm& norm, torch::Tensor input, const torch::Tensor& grad) {
  input.requires_grad_();
  auto output = norm.forward(input);
  output.backward(grad);
  return {output.detach(), input.grad()};
}

template <class Norm, class Oracle = Norm>
void expect_equals_joined(const Trial& trial) {
  const auto expect_near = [&](const torch::Tensor& expected, const torch::Tensor& found, const std::string& what) {
    EXPECT_LT(relative_difference(expected.to(torch::kDouble), found.to(torch::kDouble)), trial.tolerance) << what;
  };
  run_thread_ranks(static_cast<int>(trial.samples.size()), [&](int rank) {
    const auto norm = build_norm<Norm>(trial);
    const auto oracle = build_norm<Oracle>(trial);
    EXPECT_EQ(convert_sync_batchnorm(*norm), (std::is_same_v<Norm, Oracle> ? 1 : 0));
    const auto own = [&](const torch::Tensor& joined) { return part_of_rank(trial, joined, rank); };
    for (int step = 0; step < kSteps; ++step) {
      const auto batch = joined_batch(trial, step), grad = joined_batch(trial, step + 50);
      const auto expected = step_of(*oracle, batch.clone(), grad), found = step_of(*norm, own(batch), own(grad));
      EXPECT_EQ(found.output.scalar_type(), trial.dtype);
      EXPECT_TRUE(found.output.is_contiguous(trial.format));
      expect_near(own(expected.output), found.output, c10::str("output of step ", step));
      expect_near(own(expected.input_grad), found.input_grad, c10::str("gradient of step ", step));
    }
    for (size_t i = 0; i < norm->parameters().size(); ++i)
      expect_near(oracle->parameters()[i].grad(), all_reduce(norm->parameters()[i].grad()),
                  c10::str("gradient of parameter ", i));
    for (size_t i = 0; i < norm->buffers().size(); ++i)
      expect_near(oracle->buffers()[i], norm->buffers()[i], c10::str("buffer ", i));
  });
}

TEST(SyncBatchNorm, EqualsOneBatchNormOnTheJoinedBatch) {
  const nn::BatchNormOptions plain(3);
  const auto without_statistics = nn::BatchNormOptions(3).track_running_stats(false);
  for (const auto& trial : {
           Trial{1, {2}, {3}},
           {1, {2, 3, 4}, {3, 7}},
           {2, {2, 1, 3, 2}, {3, 5, 4}},
           {3, {1, 2}, {3, 2, 3, 4}},
           // Some ranks have no samples.
           {2, {0, 3}, {3, 5, 4}},
           {1, {2, 0, 3}, {3}},
           // The memory format is kept.
           {2, {2, 3}, {3, 5, 4}, plain, at::MemoryFormat::ChannelsLast},
           // Running statistics are averages over all batches.
           {1, {2, 3}, {3}, nn::BatchNormOptions(3).momentum(std::nullopt)},
           {1, {2, 3}, {3}, nn::BatchNormOptions(3).affine(false)},
           {1, {2, 3}, {3}, without_statistics},
           {1, {2, 3}, {3}, nn::BatchNormOptions(without_statistics).affine(false)},
           // The tolerances are the rounding errors of the dtypes. A bf16 input meets fp32 parameters.
           {2, {2, 3}, {3, 5, 4}, plain, at::MemoryFormat::Contiguous, torch::kFloat, 5e-6},
           {2, {2, 3}, {3, 5, 4}, plain, at::MemoryFormat::Contiguous, torch::kBFloat16, 1.0 / 128},
       }) {
    SCOPED_TRACE(c10::str("BatchNorm", trial.dimensions, "d, samples ", trial.samples, ", ", trial.dtype));
    if (trial.dimensions == 1)
      expect_equals_joined<nn::BatchNorm1dImpl>(trial);
    else if (trial.dimensions == 2)
      expect_equals_joined<nn::BatchNorm2dImpl>(trial);
    else
      expect_equals_joined<nn::BatchNorm3dImpl>(trial);
  }
}

TEST(SyncBatchNorm, AsAModuleEqualsOneBatchNormOnTheJoinedBatch) {
  for (const auto& options : {nn::BatchNormOptions(3), nn::BatchNormOptions(3).momentum(std::nullopt),
                              nn::BatchNormOptions(3).affine(false).track_running_stats(false)})
    // torch's own batch norm refuses a single value. Rank 0 has a single value.
    expect_equals_joined<SyncBatchNormImpl, nn::BatchNorm1dImpl>({1, {1, 3, 0}, {3}, options});
}

// A model as users write it, without any knowledge of ranks.
struct NetImpl : nn::Module {
  NetImpl() {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("tail", tail);
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = torch::relu(norm->forward(conv->forward(x)));
    return head->forward(torch::tanh(tail->forward(y)).mean({2, 3}));
  }
  nn::Conv2d conv{nn::Conv2dOptions(2, 4, 3).bias(false)};
  nn::BatchNorm2d norm{4};
  // A nonlinear layer stands between the norms. Without it the gradient of the first norm's bias would be mere
  // rounding.
  nn::Sequential tail{nn::Conv2d(4, 5, 3), nn::BatchNorm2d(5), nn::Tanh(),
                      nn::BatchNorm2d(nn::BatchNormOptions(5).affine(false))};
  nn::Linear head{5, 3};
};
TORCH_MODULE(Net);

Training<NetImpl> net_training(const FullyShardOptions& options) {
  Training<NetImpl> training;
  training.build = [] { return std::make_shared<NetImpl>(); };
  training.shard = [options](NetImpl& net) {
    convert_sync_batchnorm(net);
    fully_shard(*net.conv, options);
    fully_shard(*net.tail, options);
    return fully_shard(net, options);
  };
  training.loss = [](NetImpl& net, const Batch& batch) {
    return distance_from_targets(net.forward(samples(batch, {2, 7, 7})), batch);
  };
  // Adam is not used, because the gradient of a convolution's bias before a norm is mere rounding.
  training.optimizer = [](auto parameters) {
    return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
  };
  return training;
}

TEST(SyncBatchNorm, InAnUneditedModelTrainsAsTheUnshardedModelOnTheJoinedBatch) {
  for (int world : worlds_up_to(4)) expect_training_equals_unsharded(net_training({}), world);
  for (const auto strategy : {Strategy::kShardGradOp, Strategy::kReplicate})
    expect_training_equals_unsharded(net_training({.strategy = strategy}), 3);
}

TEST(SyncBatchNorm, OfFrozenParametersTrainsAsTheUnshardedModel) {
  auto training = net_training({.reshard_after_forward = Reshard::always()});
  training.build = [] {
    auto net = std::make_shared<NetImpl>();
    for (auto& parameter : net->norm->parameters()) parameter.requires_grad_(false);
    return net;
  };
  training.optimizer = [](auto parameters) {
    std::erase_if(parameters, [](const auto& parameter) { return !parameter.requires_grad(); });
    return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1));
  };
  expect_training_equals_unsharded(training, 2);
}

TEST(SyncBatchNorm, ConvertsEveryBatchNormAndChangesNoName) {
  run_thread_ranks(2, [](int) {
    Net net;
    const auto names = [&] {
      auto keys = net->named_parameters().keys();
      const auto buffers = net->named_buffers().keys();
      keys.insert(keys.end(), buffers.begin(), buffers.end());
      return keys;
    };
    const auto before = names();
    const auto* buffer = net->norm->running_mean.unsafeGetTensorImpl();
    EXPECT_EQ(convert_sync_batchnorm(*net), 3);
    EXPECT_EQ(names(), before);
    EXPECT_EQ(net->norm->running_mean.unsafeGetTensorImpl(), buffer);
    Net stateless;
    stateless->norm = stateless->replace_module(
        "norm", nn::BatchNorm2d(nn::BatchNormOptions(4).affine(false).track_running_stats(false)));
    const auto buffers = stateless->named_buffers().keys();
    convert_sync_batchnorm(*stateless);
    EXPECT_EQ(stateless->named_buffers().keys(), buffers);
  });
}

TEST(SyncBatchNorm, StaysOneWhenTheModelMovesToAnotherDtypeOrIsConvertedAgain) {
  const Trial trial{1, {2, 3}, {3}};
  run_thread_ranks(2, [&](int) {
    auto norm = std::make_shared<nn::BatchNorm1dImpl>(3);
    convert_sync_batchnorm(*norm);
    convert_sync_batchnorm(*norm);
    norm->to(torch::kDouble);
    torch::NoGradGuard no_grad;
    const auto batch = joined_batch(trial, 0);
    norm->forward(part_of_rank(trial, batch, rank()));
    EXPECT_LT(relative_difference(batch.mean(0) * 0.1, norm->running_mean), kTolerance);
  });
}

TEST(SyncBatchNorm, ExchangesNothingInEvaluation) {
  run_thread_ranks(2, [](int rank) {
    for (const bool is_tracked : {true, false}) {
      auto norm = std::make_shared<nn::BatchNorm1dImpl>(nn::BatchNormOptions(3).track_running_stats(is_tracked));
      convert_sync_batchnorm(*norm);
      norm->eval();
      auto oracle = std::make_shared<nn::BatchNorm1dImpl>(norm->options);
      oracle->eval();
      const auto input = samples({0, 0, 4}, {3}, torch::kFloat);
      if (rank == 0) {  // the other ranks do not take part
        EXPECT_TRUE(torch::equal(oracle->forward(input), norm->forward(input)));
      }
    }
  });
}

TEST(SyncBatchNorm, OfWhatItCannotNormaliseSaysSoOnEveryRank) {
  const auto refusal = [](const char* says) { return ThrowsMessage<UsageError>(HasSubstr(says)); };
  run_thread_ranks(2, [&](int rank) {
    SyncBatchNorm norm(3);
    EXPECT_THAT([&] { norm->forward(torch::ones({rank == 0 ? 1 : 0, 3})); },
                refusal("Expected more than 1 value per channel when training"));
    EXPECT_THAT([&] { norm->forward(torch::ones({2, 4})); },
                refusal("expected an input of sizes [N, 3, ...], found [2, 4]"));
    const auto input = samples({0, 0, 4}, {3}, torch::kFloat).requires_grad_();
    const auto output = norm->forward(input).square().sum();
    EXPECT_THAT([&] { torch::autograd::grad({output}, {input}, {}, true, true); }, refusal("has no second derivative"));
    const auto variance = norm->running_var.clone();
    EXPECT_EQ(norm->forward(torch::ones({0, 3})).sizes(), (std::vector<int64_t>{0, 3})) << "no samples on any rank";
    EXPECT_TRUE(torch::equal(norm->running_var, variance));
  });
}

TEST(SyncBatchNorm, OfRanksInDifferentOrdersIsAMismatchThatNamesThem) {
  run_thread_ranks(2, [](int rank) {
    nn::Sequential norms(nn::BatchNorm1d(3), nn::BatchNorm1d(3));
    convert_sync_batchnorm(*norms);
    const auto input = samples({0, 0, 4}, {3}, torch::kFloat);
    EXPECT_THAT([&] { norms[static_cast<size_t>(rank)]->as<nn::BatchNorm1d>()->forward(input); },
                ThrowsMessage<Mismatch>(testing::AllOf(HasSubstr("statistics of 0"), HasSubstr("statistics of 1"))));
  });
}

}  // namespace
}  // namespace fsdp::test
