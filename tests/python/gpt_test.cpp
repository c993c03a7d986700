// Tests of GPTs of Python's libraries: fsdp reads their files, and they read fsdp's files.

#include <fsdp/scopes.h>
#include <fsdp/state_dict.h>
#include <gmock/gmock.h>

#include <fstream>

#include "models/gpt2_folder.h"
#include "python/script.h"
#include "state/files.h"
#include "support/small_net.h"

namespace fsdp::test {
namespace {

using ::testing::HasSubstr;

constexpr models::GPTConfig kConfig{.vocab = 61, .seq = 10, .dim = 24, .layers = 2, .heads = 3};

Group shard_blocks(models::GPTImpl& net) {
  for (auto& block : *net.blocks) fully_shard(*block);
  return fully_shard(static_cast<torch::nn::Module&>(net));
}

// Numbers of tokens, and the logits for all of them but the last.
struct Example : torch::nn::Module {
  torch::Tensor ids, logits;
  Example(int64_t batch, int64_t tokens, int64_t logits_of)
      : ids(register_buffer("ids", torch::zeros({batch, tokens}, torch::kLong))),
        logits(register_buffer("logits", torch::zeros({batch, logits_of, kConfig.vocab}))) {}
};

torch::Tensor logits_of(models::GPTImpl& net, const Group& group, const torch::Tensor& ids) {
  const torch::NoGradGuard no_grad;
  ForwardScope scope(group);
  return net.forward(ids);
}

// Trains a step as rank `r` of 2, on its half of the batch.
void train_step(models::GPTImpl& net, const Group& group, const torch::Tensor& ids, int r) {
  torch::optim::SGD optimizer(net.parameters(), 0.1);
  const auto own = ids.chunk(2)[static_cast<size_t>(r)];
  torch::Tensor loss;
  {
    ForwardScope scope(group);
    loss = net.forward(own.slice(1, 0, -1), own.slice(1, 1));
  }
  loss.backward();
  optimizer.step();
}

TEST(StatePython, PyTorchsGptHasTheLogitsOfOursAndWhatItSavesTrainsOnHere) {
  FSDP_NEEDS_PYTHON("safetensors torch");
  const state::TemporaryFolder folder;
  Example ours(4, kConfig.seq + 1, kConfig.seq);
  torch::manual_seed(5);
  ours.ids.random_(kConfig.vocab);
  run_thread_ranks(3, [&](int r) {
    const auto net = build_alike([] { return std::make_shared<models::GPTImpl>(kConfig); });
    const auto group = shard_blocks(*net);
    const auto logits = logits_of(*net, group, ours.ids.slice(1, 0, -1));
    if (r == 0) ours.logits.copy_(logits);
    save_safetensors(folder / "model.safetensors", group);
  });
  save_safetensors(folder / "ours.safetensors", ours);
  ASSERT_EQ(run_script("gpt.py torch " + folder.path()), 0);

  models::GPTImpl after(kConfig);
  load_safetensors(folder / "after.safetensors", after);
  run_thread_ranks(2, [&](int r) {
    const auto net = build_alike([] { return std::make_shared<models::GPTImpl>(kConfig); });
    const auto group = shard_blocks(*net);
    load_safetensors(folder / "theirs.safetensors", group);
    train_step(*net, group, ours.ids, r);
    const auto expected = after.named_parameters();
    for (const auto& item : net->named_parameters())
      EXPECT_LT((full_tensor(item.value()) - expected[item.key()]).abs().max().item<double>(), 1e-5) << item.key();
  });
}

TEST(StatePython, AGpt2OfTransformersHasItsLogitsHereWholeAndSharded) {
  FSDP_NEEDS_PYTHON("safetensors transformers");
  const state::TemporaryFolder folder;
  ASSERT_EQ(run_script("gpt.py transformers " + folder.path()), 0);
  for (const std::string activation : {"gelu_new", "gelu"}) {
    SCOPED_TRACE(activation);
    Example theirs(4, kConfig.seq, kConfig.seq);
    load_safetensors(folder / activation + ".safetensors", theirs);
    run_thread_ranks(2, [&](int) {
      auto [net, sharded] = build_alike([&] {
        const auto config = models::gpt2_config(folder / activation);
        return std::pair(models::GPT(config), models::GPT(config));
      });
      const auto group = shard_blocks(*sharded);
      for (auto model : {net, sharded}) models::load_gpt2(*model, folder / activation);
      const auto distance = [&](const torch::Tensor& logits) {
        return (logits - theirs.logits).abs().max().item<double>();
      };
      EXPECT_LT(distance(net->forward(theirs.ids)), 1e-5);
      EXPECT_LT(distance(logits_of(*sharded, group, theirs.ids)), 1e-5);
    });
  }
}

std::string error_of(const auto& act) {
  try {
    act();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

TEST(Gpt2Folder, AConfigurationThatGptCannotBeIsRefused) {
  const state::TemporaryFolder folder;
  const auto error_of_config = [&](const std::string& more) {
    std::ofstream(folder / "config.json")
        << R"({"model_type": "gpt2", "vocab_size": 61, "n_positions": 10, "n_embd": 24, "n_layer": 2, "n_head": 3)"
        << more << "}";
    return error_of([&] { models::gpt2_config(folder.path()); });
  };
  EXPECT_EQ(error_of_config(R"(, "n_inner": 96, "activation_function": "gelu")"), "");
  EXPECT_EQ(error_of_config(R"(, "n_inner": null, "activation_function": "gelu_pytorch_tanh")"), "");
  EXPECT_THAT(error_of_config(R"(, "n_inner": 48)"),
              HasSubstr("'n_inner': expected 96, the only value that this program's GPT supports, found 48"));
  EXPECT_THAT(error_of_config(R"(, "activation_function": "relu")"), HasSubstr("found relu"));
  EXPECT_THAT(error_of_config(R"(, "scale_attn_by_inverse_layer_idx": true)"), HasSubstr("expected false"));
  EXPECT_THAT(error_of_config(R"(, "vocab_size": )"), HasSubstr("expected the configuration of a GPT-2"));
  EXPECT_THAT(error_of([&] { models::gpt2_config(folder / "none"); }), HasSubstr("none/config.json"));
}

TEST(Gpt2Folder, TensorsThatDoNotFitAreNamed) {
  const state::TemporaryFolder folder;
  models::GPTImpl net(kConfig);
  struct : torch::nn::Module {
  } file;
  file.register_buffer("other", torch::zeros(3));
  const auto error_of_file = [&] {
    save_safetensors(folder / "model.safetensors", file);
    return error_of([&] { models::load_gpt2(net, folder.path()); });
  };
  EXPECT_THAT(error_of_file(), HasSubstr("expected an entry 'wte.weight'"));
  file.register_module("wte", std::make_shared<torch::nn::EmbeddingImpl>(60, 24));
  EXPECT_THAT(error_of_file(),
              HasSubstr("entry 'wte.weight': expected the sizes [61, 24] of the configuration, found [60, 24]"));
}

}  // namespace
}  // namespace fsdp::test
