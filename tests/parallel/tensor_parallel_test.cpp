// Layers of which each rank has a part, against the whole layers.

#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <mutex>
#include <optional>
#include <sstream>
#include <string>

#include "comm/frame.h"

namespace fsdp::test {
namespace {

constexpr int64_t kVocab = 24, kDim = 6, kHidden = 12, kRows = 12;

// A transformer's layers without attention, with a norm between them and the head.
struct WholeNet : torch::nn::Module {
  WholeNet() {
    const auto options = torch::nn::EmbeddingOptions(kVocab, kDim).padding_idx(7);
    embedding = register_module("embedding", torch::nn::Embedding(options));
    up = register_module("up", torch::nn::Linear(kDim, kHidden));
    down = register_module("down", torch::nn::Linear(kHidden, kDim));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kDim})));
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(kDim, kVocab).bias(false)));
  }
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets) {
    const auto x = embedding(tokens);
    const auto logits = head(norm(x + down(torch::gelu(up(x)))));
    return torch::nn::functional::cross_entropy(logits, targets);
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr}, head{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};

struct PartsNet : torch::nn::Module {
  explicit PartsNet(std::optional<int64_t> sequence_dim) : parallel{.axis = nullptr, .sequence_dim = sequence_dim} {
    const auto whole = torch::nn::EmbeddingOptions(kVocab, kDim).padding_idx(7);
    embedding = register_module("embedding", VocabParallelEmbedding(whole, parallel));
    up = register_module("up", ColumnParallelLinear(torch::nn::LinearOptions(kDim, kHidden), parallel));
    down = register_module("down", RowParallelLinear(torch::nn::LinearOptions(kHidden, kDim), parallel));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kDim})));
    const auto classes = torch::nn::LinearOptions(kDim, kVocab).bias(false);
    head = register_module("head", ColumnParallelLinear(classes, parallel));
  }
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets) {
    const auto x = embedding(tokens);
    const auto shared = [&](const at::Tensor& weight) {
      return parallel.sequence_dim ? functional::copy_to_ranks(weight) : weight;
    };
    const auto sum = x + down(torch::gelu(up(x)));
    const auto normed = torch::layer_norm(sum, {kDim}, shared(norm->weight), shared(norm->bias));
    return vocab_parallel_cross_entropy(head(normed), targets);
  }
  TensorParallelOptions parallel;
  VocabParallelEmbedding embedding{nullptr};
  ColumnParallelLinear up{nullptr}, head{nullptr};
  RowParallelLinear down{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};

// The part of a whole parameter, or of its gradient, that this rank has.
at::Tensor part_like(const at::Tensor& whole, const at::Tensor& own) {
  auto part = whole;
  for (int64_t dim = 0; dim < whole.dim(); ++dim) {
    const int64_t size = own.size(dim);
    if (size != whole.size(dim)) part = part.narrow(dim, fsdp::rank() * size, size);
  }
  return part;
}

struct Batch {
  at::Tensor tokens = at::arange(kRows) * 5 % kVocab;
  at::Tensor targets = at::arange(kRows) * 7 % kVocab;
  Batch() { targets.slice(0, 3, 5).fill_(-100); }
};

// Ranks are threads, which have one generator.
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
      EXPECT_TRUE(at::equal(parameter.value(), part_like(all[parameter.key()], parameter.value()))) << parameter.key();
    const auto loss = net->loss(batch.tokens, batch.targets);
    EXPECT_TRUE(at::allclose(loss, expected, 1e-12, 1e-12));
    loss.backward();
    for (const auto& parameter : net->named_parameters())
      EXPECT_TRUE(at::allclose(parameter.value().grad(), part_like(all[parameter.key()].grad(), parameter.value()),
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

// Two ranks with data, two parts each.
TEST(TensorParallelOnAMesh, PartsThatAreShardedOverDataTrainAsTheWholeLayersOnTheJoinedBatch) {
  const Batch batch;
  auto whole = seeded([] { return std::make_shared<WholeNet>(); });
  torch::optim::SGD plain(whole->parameters(), 0.1);
  whole->loss(batch.tokens.slice(0, 6), batch.targets.slice(0, 6)).div(2).backward();
  whole->loss(batch.tokens.slice(0, 0, 6), batch.targets.slice(0, 0, 6)).div(2).backward();
  plain.step();
  run_thread_ranks(4, [&](int) {
    const auto mesh = init_device_mesh({2, 2}, {"data", "tensor"});
    const ThreadProcessGroupGuard axis(mesh.process_group("tensor"));
    auto net = seeded([] { return std::make_shared<PartsNet>(std::nullopt); });
    fully_shard(*net->up, {.mesh = mesh["data"]});
    const auto model = fully_shard(*net, {.mesh = mesh["data"]});
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    const int64_t first = 6 * mesh.coordinate("data");
    {
      const ForwardScope scope(model);
      net->loss(batch.tokens.slice(0, first, first + 6), batch.targets.slice(0, first, first + 6)).backward();
    }
    optimizer.step();
    const auto all = whole->named_parameters();
    for (const auto& parameter : net->named_parameters()) {
      const auto own = full_tensor(parameter.value());
      EXPECT_TRUE(at::allclose(own, part_like(all[parameter.key()], own), 1e-10, 1e-12)) << parameter.key();
    }
  });
}

TEST(TensorParallelErrors, SizesThatTheRanksDoNotDivideAreRefused) {
  run_thread_ranks(2, [](int) {
    expect_error([] { ColumnParallelLinear(torch::nn::LinearOptions(4, 3)); },
                 {"ColumnParallelLinear: expected out_features that the axis's 2 ranks divide, found 3."});
    expect_error([] { RowParallelLinear(torch::nn::LinearOptions(3, 4)); }, {"in_features", "found 3."});
    expect_error([] { VocabParallelEmbedding(torch::nn::EmbeddingOptions(5, 4)); }, {"num_embeddings", "found 5."});
    expect_error([] { VocabParallelEmbedding(torch::nn::EmbeddingOptions(4, 4).max_norm(1.0)); }, {"max_norm"});
    expect_error([] { return vocab_parallel_cross_entropy(torch::ones({3, 2}), torch::ones({2}, torch::kLong)); },
                 {"vocab_parallel_cross_entropy: expected logits of sizes [rows, classes / ranks]"});
    std::ostringstream text;
    text << ColumnParallelLinear(torch::nn::LinearOptions(4, 6));
    EXPECT_EQ(text.str(), "fsdp::ColumnParallelLinear(in_features=4, out_features=6, bias=true, parts=2)");
  });
}

}  // namespace
}  // namespace fsdp::test
