#pragma once
/// \file
/// A GPT as anyone would write it for LibTorch, but for fsdp::positions: nothing in it is about sharding.

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include "models/language_model.h"

namespace models {

struct GPTConfig {
  int64_t vocab = 0;
  /// Longest context, in tokens.
  int64_t seq = 0;
  /// Width of the residual stream; a multiple of `heads`.
  int64_t dim = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  /// Share of the values set to zero in training: of the embeddings, of attention's weights, and of what attention and
  /// the network of each block give.
  double dropout = 0;
  /// GELU by its approximation with tanh, as GPT-2 has it.
  bool tanh_gelu = false;
};

/// Attention and a two-layer network, each behind a norm and beside a residual connection.
class BlockImpl : public torch::nn::Module {
 public:
  BlockImpl(int64_t dim, int64_t heads, double dropout = 0, bool tanh_gelu = false);
  torch::Tensor forward(torch::Tensor x);

  torch::nn::LayerNorm ln1, ln2;
  torch::nn::Linear qkv, proj, fc, fc2;

 private:
  torch::Tensor attention(const torch::Tensor& x);

  int64_t heads_;
  double dropout_;
  bool tanh_gelu_;
};
TORCH_MODULE(Block);

/// Modules are made in the order tok, pos, blocks, norm, head. The order is part of the contract: one seed gives the
/// same initial values as the same model written in Python.
class GPTImpl : public LanguageModelImpl {
 public:
  explicit GPTImpl(const GPTConfig& config);

  torch::nn::Embedding tok, pos;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm;

 private:
  torch::Tensor features(const torch::Tensor& ids) override;

  double dropout_;
};
TORCH_MODULE(GPT);

}  // namespace models
