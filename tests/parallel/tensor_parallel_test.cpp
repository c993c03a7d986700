// Compares layers that are split over ranks with the whole layers.

#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <latch>
#include <limits>
#include <mutex>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>

#include "comm/frame.h"
#include "state/files.h"

namespace fsdp::test {
namespace {

constexpr int64_t kVocab = 24, kDim = 6, kInner = 12, kRows = 12;

// One matrix holds three, as it often does for queries, keys and values.
at::Tensor mixed(const at::Tensor& fused) {
  const auto parts = fused.chunk(3, -1);
  return torch::gelu(parts[0]) * parts[1] + parts[2];
}

// The layers of a transformer without attention, with a norm between them and the head.
struct WholeNet : torch::nn::Module {
  WholeNet() {
    const auto options = torch::nn::EmbeddingOptions(kVocab, kDim).padding_idx(7);
    embedding = register_module("embedding", torch::nn::Embedding(options));
    up = register_module("up", torch::nn::Linear(kDim, 3 * kInner));
    down = register_module("down", torch::nn::Linear(kInner, kDim));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kDim})));
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(kDim, kVocab).bias(false)));
  }
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets) {
    const auto x = embedding(tokens);
    const auto logits = head(norm(x + down(mixed(up(x)))));
    return torch::nn::functional::cross_entropy(logits, targets);
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr}, head{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};

struct PartsNet : torch::nn::Module {
  explicit PartsNet(std::optional<int64_t> sequence_dim, std::shared_ptr<ProcessGroup> axis = nullptr)
      : parallel{.axis = axis ? std::move(axis) : default_process_group(), .sequence_dim = sequence_dim} {
    const auto whole = torch::nn::EmbeddingOptions(kVocab, kDim).padding_idx(7);
    embedding = register_module("embedding", VocabParallelEmbedding(whole, parallel));
    up = register_module("up", ColumnParallelLinear(torch::nn::LinearOptions(kDim, 3 * kInner), parallel,
                                                     /*gather_output=*/false, /*fused=*/3));
    down = register_module("down", RowParallelLinear(torch::nn::LinearOptions(kInner, kDim), parallel));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kDim})));
    const auto classes = torch::nn::LinearOptions(kDim, kVocab).bias(false);
    head = register_module("head", ColumnParallelLinear(classes, parallel));
  }
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets) {
    const auto x = embedding(tokens);
    const auto shared = [&](const at::Tensor& weight) {
      return parallel.sequence_dim ? functional::copy_to_ranks(weight, parallel.axis) : weight;
    };
    const auto sum = x + down(mixed(up(x)));
    const auto normed = torch::layer_norm(sum, {kDim}, shared(norm->weight), shared(norm->bias));
    return vocab_parallel_cross_entropy(head(normed), targets, parallel.axis);
  }
  TensorParallelOptions parallel;
  VocabParallelEmbedding embedding{nullptr};
  ColumnParallelLinear up{nullptr}, head{nullptr};
  RowParallelLinear down{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};

// Returns this rank's part of a whole parameter or of its gradient.
at::Tensor part_like(const at::Tensor& whole, const at::Tensor& own, const ProcessGroup& axis) {
  auto part = whole;
  for (int64_t dim = 0; dim < whole.dim(); ++dim)
    if (own.size(dim) != whole.size(dim)) {
      const int64_t fused = whole.size(dim) == 3 * kInner ? 3 : 1;
      const auto matrices = part.unflatten(dim, {fused, axis.world_size(), -1});
      part = matrices.select(dim + 1, axis.rank()).flatten(dim, dim + 1);
    }
  return part;
}

struct Batch {
  at::Tensor tokens = at::arange(kRows) * 5 % kVocab;
  at::Tensor targets = at::arange(kRows) * 7 % kVocab;
  Batch() { targets.slice(0, 3, 5).fill_(-100); }
};

// A lock makes ranks take turns, because thread ranks share one generator.
template <class Make>
auto seeded(const Make& make) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(11);
  auto made = make();
  made->to(torch::kDouble);
  return made;
}

class TensorParallel : public testing::TestWithParam<std::tuple<std::string, int, bool>> {};

TEST_P(TensorParallel, PartsHaveTheValuesTheLossAndTheGradientsOfTheWholeLayers) {
  const auto& [backend, world, cuts_sequence] = GetParam();
  const Batch batch;
  auto whole = seeded([] { return std::make_shared<WholeNet>(); });
  auto expected = whole->loss(batch.tokens, batch.targets);
  expected.backward();
  run_thread_ranks_with(world, {.backend = backend}, [&, cuts = cuts_sequence](int) {
    auto net = seeded([&] { return std::make_shared<PartsNet>(cuts ? std::optional<int64_t>(0) : std::nullopt); });
    const auto all = whole->named_parameters();
    for (const auto& parameter : net->named_parameters())
      EXPECT_TRUE(at::equal(parameter.value(),
                            part_like(all[parameter.key()], parameter.value(), *default_process_group())))
          << parameter.key();
    const auto loss = net->loss(batch.tokens, batch.targets);
    EXPECT_TRUE(at::allclose(loss, expected, 1e-12, 1e-12));
    loss.backward();
    for (const auto& parameter : net->named_parameters())
      EXPECT_TRUE(at::allclose(parameter.value().grad(), part_like(all[parameter.key()].grad(), parameter.value(),
                                         *default_process_group()),
                               1e-10, 1e-12))
          << parameter.key();
  });
}

INSTANTIATE_TEST_SUITE_P(Axes, TensorParallel,
                         testing::Combine(testing::Values("shm", "gloo"), testing::Values(1, 2, 3), testing::Bool()),
                         [](const auto& info) {
                           return std::get<0>(info.param) + std::to_string(std::get<1>(info.param)) +
                                  (std::get<2>(info.param) ? "_tokens" : "");
                         });

// Each rank of the data axis has equally many rows of the joined batch.
at::Tensor loss_of_share(PartsNet& net, const Group& model, int64_t share, int64_t shares) {
  const auto rows = [&](const at::Tensor& all) { return all.chunk(shares)[static_cast<size_t>(share)]; };
  const ForwardScope scope(model);
  return net.loss(rows(at::arange(kRows) * 5 % kVocab), rows(at::arange(kRows) * 7 % kVocab));
}

struct TrainedParts {
  TrainedParts(std::vector<int> sizes)
      : mesh(init_device_mesh(sizes, {"data", "tensor"})),
        net(seeded([&] { return std::make_shared<PartsNet>(std::nullopt, mesh.process_group("tensor")); })),
        inner(fully_shard(*net->up, {.mesh = mesh["data"]})),
        model(fully_shard(*net, {.mesh = mesh["data"]})) {}

  // Returns the norm of the gradients before clipping.
  double step() {
    optimizer.zero_grad();
    loss_of_share(*net, model, mesh.coordinate("data"), mesh.size("data")).backward();
    const double norm = clip_grad_norm_(model, kMaxNorm);
    optimizer.step();
    return norm;
  }
  void expect_is(WholeNet& whole) {
    const auto all = whole.named_parameters();
    for (const auto& parameter : net->named_parameters()) {
      const auto own = full_tensor(parameter.value());
      EXPECT_TRUE(at::allclose(own, part_like(all[parameter.key()], own, *net->parallel.axis), 1e-9, 1e-10))
          << parameter.key();
    }
  }

  static constexpr double kMaxNorm = 0.5;
  DeviceMesh mesh;
  std::shared_ptr<PartsNet> net;
  Group inner, model;
  optim::AdamW optimizer{net->parameters(), torch::optim::AdamWOptions(0.1)};
};

class TensorParallelTraining : public testing::TestWithParam<std::string> {};

TEST_P(TensorParallelTraining, PartsShardedOverDataTrainAndAreSavedAsTheWholeLayers) {
  const state::TemporaryFolder folder;
  const auto whole = seeded([] { return std::make_shared<WholeNet>(); });
  torch::optim::AdamW plain(whole->parameters(), torch::optim::AdamWOptions(0.1));
  const auto step = [&] {
    plain.zero_grad();
    whole->loss(at::arange(kRows) * 5 % kVocab, at::arange(kRows) * 7 % kVocab).backward();
    const double norm = torch::nn::utils::clip_grad_norm_(whole->parameters(), TrainedParts::kMaxNorm);
    plain.step();
    return norm;
  };
  const auto run = [&](const std::vector<int>& sizes, const std::function<void(TrainedParts&)>& act) {
    run_thread_ranks_with(sizes[0] * sizes[1], {.backend = GetParam()}, [&](int) {
      TrainedParts parts(sizes);
      act(parts);
    });
  };
  const std::vector<double> expected_norms{step(), step()};
  run({2, 2}, [&](TrainedParts& parts) {
    for (const double expected : expected_norms) EXPECT_NEAR(parts.step(), expected, 1e-9);
    parts.expect_is(*whole);
    double squares = 0, elements = 0;
    for (const auto& parameter : whole->parameters()) {
      squares += parameter.detach().pow(2).sum().item<double>();
      elements += parameter.detach().sum().item<double>();
    }
    EXPECT_NEAR(norm(parts.model), std::sqrt(squares), 1e-9);
    EXPECT_NEAR(norms({parts.net->norm->weight})[0], whole->norm->weight.norm().item<double>(), 1e-9);
    EXPECT_NEAR(sum(parts.model), elements, 1e-9);
    save_checkpoint(folder.path(), parts.model, &parts.optimizer);
    expect_error([&] { return full_state_dict(parts.model); }, {"full_state_dict", "fsdp::save_checkpoint"});
    expect_error([&] { save(parts.optimizer, folder.path() + "/optimizer"); }, {"save", "fsdp::save_checkpoint"});
    expect_error([&] { return sum(parts.net->up->weight, at::IntArrayRef{0}); }, {"sum", "'up.weight'", "tensor axis"});
  });
  WholeNet loaded;
  loaded.to(torch::kDouble);
  load_checkpoint(folder.path(), loaded);
  for (const auto& parameter : loaded.named_parameters())
    EXPECT_TRUE(at::allclose(parameter.value(), whole->named_parameters()[parameter.key()], 1e-9, 1e-10))
        << parameter.key();
  step();
  for (const auto& sizes : {std::vector{1, 3}, std::vector{3, 1}, std::vector{2, 2}}) {
    SCOPED_TRACE(sizes[1]);
    run(sizes, [&](TrainedParts& parts) {
      {
        const LocalRows rows(parts.model);
        const torch::NoGradGuard no_grad;
        for (const auto& parameter : parts.net->parameters()) parameter.zero_();
      }
      load_checkpoint(folder.path(), parts.model, &parts.optimizer);
      parts.step();
      parts.expect_is(*whole);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, TensorParallelTraining, testing::Values("shm", "gloo", "hierarchical"),
                         [](const auto& info) { return info.param; });

TEST(TensorParallelErrors, RanksWithOtherPartsCannotShareRows) {
  run_thread_ranks(2, [](int) {
    auto net = seeded([] { return std::make_shared<PartsNet>(std::nullopt); });
    expect_error([&] { return fully_shard(*net); }, {"fully_shard", "a different part of the parameters", "mesh"});
  });
}

TEST(TensorParallelScaling, AnInfInOnePartSkipsTheStepOnAllRanksOfTheAxis) {
  run_thread_ranks(4, [](int) {
    TrainedParts parts({2, 2});
    GradScaler scaler({.init_scale = 4});
    scaler.scale(loss_of_share(*parts.net, parts.model, parts.mesh.coordinate("data"), 2)).backward();
    if (parts.mesh.rank() == 3) parts.net->down->weight.mutable_grad().fill_(std::numeric_limits<double>::infinity());
    const auto before = full_tensor(parts.net->norm->weight).clone();
    scaler.step(parts.optimizer);
    scaler.update();
    EXPECT_TRUE(at::equal(full_tensor(parts.net->norm->weight), before));
    EXPECT_EQ(scaler.get_scale(), 2);
  });
}

// One rank throws while its peers wait for it on either axis.
TEST(TensorParallelFailures, AreAnErrorOnEveryRankAndAllAxesStartOver) {
  for (const auto& sizes : {std::vector{1, 2}, std::vector{2, 2}})
    run_thread_ranks_with(sizes[0] * sizes[1], {.timeout = std::chrono::seconds(20), .backend = "gloo"}, [&](int rank) {
      TrainedParts disturbed(sizes), quiet(sizes);
      EXPECT_EQ(disturbed.step(), quiet.step());
      if (rank == 1)
        ForwardScope(disturbed.model).close();  // then, for example, a file turns out to be broken
      else
        expect_error<Error>([&] { disturbed.step(); }, {"starts over"});
      disturbed.model.reset_iter_state();
      EXPECT_EQ(disturbed.step(), quiet.step());
    });
}

// Rank 0 shares no axis with rank 3, which ends.
TEST(TensorParallelFailures, OfARankThatEndsNameItOnEveryAxis) {
  std::vector<std::string> errors(3);
  std::latch have_ended(3);
  const auto act = [&](int rank) {
    TrainedParts parts({2, 2});
    parts.step();
    if (rank == 3) throw std::runtime_error("out of eggs");
    errors[static_cast<size_t>(rank)] = error_of<Error>([&] { parts.step(); });
    have_ended.arrive_and_wait();
  };
  EXPECT_THROW(run_thread_ranks_with(4, {.timeout = std::chrono::seconds(20), .backend = "gloo"}, act), std::exception);
  for (const auto& error : errors)
    EXPECT_THAT(error, testing::AllOf(testing::HasSubstr("rank 3 "), testing::Not(testing::HasSubstr("timed out"))));
}

TEST(TensorParallelErrors, SizesThatTheRanksDoNotDivideAreRefused) {
  run_thread_ranks(2, [](int) {
    expect_error([] { ColumnParallelLinear(torch::nn::LinearOptions(4, 3)); },
                 {"ColumnParallelLinear: expected out_features to be a multiple of the axis's 2 ranks, found 3."});
    expect_error([] { ColumnParallelLinear(torch::nn::LinearOptions(4, 8), TensorParallelOptions(), true, 2); },
                 {"gather_output is not supported with fused matrices"});
    expect_error([] { RowParallelLinear(torch::nn::LinearOptions(3, 4)); }, {"in_features", "found 3."});
    expect_error([] { VocabParallelEmbedding(torch::nn::EmbeddingOptions(5, 4)); }, {"num_embeddings", "found 5."});
    expect_error([] { VocabParallelEmbedding(torch::nn::EmbeddingOptions(4, 4).max_norm(1.0)); }, {"max_norm"});
    expect_error([] { return VocabParallelEmbedding(torch::nn::EmbeddingOptions(4, 4))(torch::full({1}, 4)); },
                 {"VocabParallelEmbedding: expected indices from 0 to 3, found 4 to 4."});
    expect_error([] { return vocab_parallel_cross_entropy(torch::ones({1, 2}), torch::full({1}, 4)); },
                 {"vocab_parallel_cross_entropy: expected targets from 0 to 3, found 4 to 4."});
    expect_error([] { return vocab_parallel_cross_entropy(torch::ones({3, 2}), torch::ones({2}, torch::kLong)); },
                 {"vocab_parallel_cross_entropy: expected logits of sizes [rows, classes / ranks]"});
    std::ostringstream text;
    text << ColumnParallelLinear(torch::nn::LinearOptions(4, 6));
    EXPECT_EQ(text.str(), "fsdp::ColumnParallelLinear(in_features=4, out_features=6, bias=true, parts=2)");
  });
}

}  // namespace
}  // namespace fsdp::test
