// Compares models that are unchanged except for positions, split along their sequences, with the same models whole.

#include <ATen/autocast_mode.h>
#include <fsdp/fsdp.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <optional>
#include <string>
#include <vector>

#include "comm/frame.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

// A language model that has fewer heads of keys than of queries.
struct LanguageModelImpl : nn::Module {
  LanguageModelImpl() {
    for (size_t i = 0; i < 2; ++i) {
      norms->push_back(nn::LayerNorm(nn::LayerNormOptions({32})));
      inward->push_back(nn::Linear(32, 64));
      outward->push_back(nn::Linear(32, 32));
    }
    register_module("tokens", tokens);
    register_module("places", places);
    register_module("norms", norms);
    register_module("inward", inward);
    register_module("outward", outward);
    register_module("head", head);
  }

  at::Tensor attend(const at::Tensor& x, size_t layer) {
    const auto parts = inward[layer]->as<nn::Linear>()->forward(norms[layer]->as<nn::LayerNorm>()->forward(x));
    const auto heads = [&](int64_t first, int64_t count) {
      return parts.narrow(2, first * 4, count * 4).unflatten(2, {count, 4}).transpose(1, 2);
    };
    const auto output = torch::scaled_dot_product_attention(heads(0, 8), heads(8, 4), heads(12, 4), {}, 0.0, true, {},
                                                            /*enable_gqa=*/true);
    return x + outward[layer]->as<nn::Linear>()->forward(output.transpose(1, 2).flatten(2));
  }

  at::Tensor forward(const at::Tensor& text) {
    auto x = tokens(text) + places(positions(text.size(1)));
    for (size_t layer = 0; layer < 2; ++layer) {
      const auto part = [this, layer](const at::Tensor& input) { return attend(input, layer); };
      x = is_checkpointed ? activation_checkpoint(part, x) : part(x);
    }
    return head(x);
  }

  nn::Embedding tokens{20, 32}, places{14, 32};
  nn::ModuleList norms, inward, outward;
  nn::Linear head{32, 20};
  bool is_checkpointed = false;
};
TORCH_MODULE(LanguageModel);

struct AutocastOf {
  explicit AutocastOf(bool on) : is_on(on) {
    if (is_on) at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  ~AutocastOf() {
    if (is_on) at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
  }
  bool is_on;
};

// Returns the sum over the tokens that count. Ranks have different numbers of them.
at::Tensor summed_loss(const at::Tensor& logits, const at::Tensor& labels) {
  return nn::functional::cross_entropy(
      logits.flatten(0, 1).to(at::kFloat), labels.flatten(),
      nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum).ignore_index(-100));
}

struct Variant {
  std::string name;
  SequenceMethod method = SequenceMethod::kHeadTail;
  int ranks = 2;  // number of ranks of a sequence
  bool is_checkpointed = false, is_autocast = false;
  int batches = 1;  // number of parts of the batch, each on its own ranks
  int heads = 1;    // number of ranks that exchange heads, for each rank of a ring
};
void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

LanguageModel copied(LanguageModel& model) {
  const at::NoGradGuard no_grad;
  LanguageModel copy;
  const auto values = model->named_parameters();
  for (auto& parameter : copy->named_parameters()) parameter.value().copy_(values[parameter.key()]);
  return copy;
}

class SequenceTraining : public testing::TestWithParam<Variant> {};

TEST_P(SequenceTraining, WithFullyShardOnTheSameRanksGivesTheLossAndGradientsOfTheWholeModel) {
  const auto& variant = GetParam();
  constexpr int64_t kLength = 13;  // no number of ranks divides it
  torch::manual_seed(5);
  const auto text = torch::randint(20, {variant.batches, 2, kLength + 1}), inputs = text.narrow(2, 0, kLength);
  auto labels = text.narrow(2, 1, kLength).clone();
  labels.narrow(2, 0, 5).fill_(-100);  // most labels of the first rank
  LanguageModel plain;
  std::vector<double> expected_losses;
  for (int64_t batch = 0; batch < variant.batches; ++batch) {
    const AutocastOf autocast(variant.is_autocast);
    const auto loss = summed_loss(plain(inputs[batch]), labels[batch]) / labels[batch].ne(-100).sum();
    (loss / variant.batches).backward();
    expected_losses.push_back(loss.item<double>());
  }
  const double tolerance = variant.is_autocast ? 2e-2 : 2e-6;
  run_thread_ranks(variant.batches * variant.ranks * variant.heads, [&](int rank) {
    const auto mesh = init_device_mesh({variant.batches, variant.ranks, variant.heads}, {"data", "sequence", "heads"});
    const auto batch = mesh.coordinate("data");
    auto model = copied(plain);
    model->is_checkpointed = variant.is_checkpointed;
    for (const auto& layer : model->inward->children()) fully_shard(*layer);
    const auto group = fully_shard(*model);
    at::Tensor loss;
    {
      std::optional<SequenceParallel> sequence;
      if (variant.heads == 1)
        sequence.emplace(mesh.process_group("sequence"), variant.method);
      else
        sequence.emplace(mesh.process_group("sequence"), mesh.process_group("heads"), variant.method);
      const ForwardScope scope(group);
      const AutocastOf autocast(variant.is_autocast);
      const auto own = sequence->shard(labels[batch], 1, -100);
      const auto logits = model->forward(sequence->shard(inputs[batch], 1));
      loss = sequence_mean(summed_loss(logits, own), own.ne(-100).sum());
    }
    loss.backward();  // outside the scope, even if parts are recomputed
    EXPECT_NEAR(loss.item<double>(), expected_losses[static_cast<size_t>(batch)], tolerance) << rank;
    const auto expected = plain->named_parameters();
    for (const auto& parameter : model->named_parameters()) {
      const auto& wanted = expected[parameter.key()].grad();
      EXPECT_LE((full_tensor(parameter.value().grad()) - wanted).abs().max().item<double>(),
                tolerance * std::max(1.0, wanted.abs().max().item<double>()))
          << parameter.key();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Variants, SequenceTraining,
    testing::Values(Variant{"HeadTail"}, Variant{"HeadTailOf3", SequenceMethod::kHeadTail, 3},
                    Variant{"Ring", SequenceMethod::kRing, 3}, Variant{"Gather", SequenceMethod::kGather, 3},
                    Variant{"Heads", SequenceMethod::kHeads, 4},
                    Variant{"RingSelfAttention", SequenceMethod::kRingSelfAttention, 3},
                    Variant{"Checkpointed", SequenceMethod::kHeadTail, 3, true},
                    Variant{"CheckpointedHeads", SequenceMethod::kHeads, 2, true},
                    Variant{"Autocast", SequenceMethod::kHeadTail, 2, false, true},
                    Variant{"TwoBatches", SequenceMethod::kHeadTail, 2, false, false, 2},
                    Variant{"TwoAxes", SequenceMethod::kHeadTail, 2, false, false, 1, 2},
                    Variant{"TwoAxesCheckpointed", SequenceMethod::kRing, 2, true, false, 1, 2},
                    Variant{"CheckpointedAutocast", SequenceMethod::kGather, 2, true, true}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fsdp::test
