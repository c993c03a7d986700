#pragma once
/// \file
/// The model and the data of every step of the tutorial, in plain LibTorch. The model is a small transformer that
/// continues sequences such as 3 5 7 9 ..., modulo 32.

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

namespace tutorial {

constexpr int64_t kNumbers = 32, kLength = 16, kWidth = 64, kHeads = 4, kBlocks = 4;

struct BlockImpl : torch::nn::Module {
  torch::nn::LayerNorm norm1{torch::nn::LayerNormOptions({kWidth})}, norm2{torch::nn::LayerNormOptions({kWidth})};
  torch::nn::Linear qkv{kWidth, 3 * kWidth}, joined{kWidth, kWidth}, up{kWidth, 4 * kWidth}, down{4 * kWidth, kWidth};
  BlockImpl() {
    register_module("norm1", norm1);
    register_module("qkv", qkv);
    register_module("joined", joined);
    register_module("norm2", norm2);
    register_module("up", up);
    register_module("down", down);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto heads = qkv(norm1(x)).view({x.size(0), x.size(1), 3, kHeads, -1}).permute({2, 0, 3, 1, 4});
    const auto seen = torch::scaled_dot_product_attention(heads[0], heads[1], heads[2], /*attn_mask=*/{},
                                                          /*dropout_p=*/0, /*is_causal=*/true);
    const auto h = x + joined(seen.transpose(1, 2).flatten(2));
    return h + down(torch::gelu(up(norm2(h))));
  }
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  torch::nn::Embedding numbers{kNumbers, kWidth}, places{kLength, kWidth};
  torch::nn::Sequential blocks;
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({kWidth})};
  torch::nn::Linear head{kWidth, kNumbers};
  NetImpl() {
    for (int64_t i = 0; i < kBlocks; ++i) blocks->push_back(Block());
    register_module("numbers", numbers);
    register_module("places", places);
    register_module("blocks", blocks);
    register_module("norm", norm);
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    return head(norm(blocks->forward(numbers(ids) + places(torch::arange(ids.size(1))))));
  }
};
TORCH_MODULE(Net);

inline torch::Tensor loss_of(const torch::Tensor& scores, const torch::Tensor& targets) {
  return torch::cross_entropy_loss(scores.flatten(0, 1), targets.flatten());
}

/// Sequences that begin at random numbers and count in steps of 1 to 4. The target of a sequence is the same sequence,
/// moved on by one number.
struct Sequences : torch::data::Dataset<Sequences> {
  static constexpr int64_t kSequences = 512;
  torch::Tensor starts, steps;
  Sequences() {
    auto generator = at::detail::createCPUGenerator(/*seed=*/1);
    starts = torch::randint(0, kNumbers, {kSequences, 1}, generator, torch::kLong);
    steps = torch::randint(1, 5, {kSequences, 1}, generator, torch::kLong);
  }
  torch::data::Example<> get(size_t number) override {
    const auto i = static_cast<int64_t>(number);
    const auto counted = (starts[i] + steps[i] * torch::arange(kLength + 1)).remainder(kNumbers);
    return {counted.slice(0, 0, kLength), counted.slice(0, 1)};
  }
  std::optional<size_t> size() const override { return kSequences; }
};

}  // namespace tutorial
