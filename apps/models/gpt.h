#pragma once
/// \file
/// A GPT as anyone would write it for LibTorch: nothing in it is about sharding.

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

namespace models {

struct GPTConfig {
  int64_t vocab = 0;
  /// Longest context, in tokens.
  int64_t seq = 0;
  /// Width of the residual stream; a multiple of `heads`.
  int64_t dim = 0;
  int64_t layers = 0;
  int64_t heads = 0;
};

/// Attention and a two-layer network, each behind a norm and beside a residual connection.
class BlockImpl : public torch::nn::Module {
 public:
  BlockImpl(int64_t dim, int64_t heads);
  torch::Tensor forward(torch::Tensor x);

  torch::nn::LayerNorm ln1, ln2;
  torch::nn::Linear qkv, proj, fc, fc2;

 private:
  torch::Tensor attention(const torch::Tensor& x);

  int64_t heads_;
};
TORCH_MODULE(Block);

/// Modules are made in the order tok, pos, blocks, norm, head. The order is part of the contract: one seed gives the
/// same initial values as the same model written in Python.
class GPTImpl : public torch::nn::Module {
 public:
  explicit GPTImpl(const GPTConfig& config);

  /// `ids`: token numbers, [batch, at most seq]. Returns logits, [batch, tokens, vocab].
  torch::Tensor forward(const torch::Tensor& ids);

  torch::nn::Embedding tok, pos;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;
};
TORCH_MODULE(GPT);

/// Mean cross entropy of `logits` [batch, tokens, vocab] against the tokens that came, [batch, tokens].
torch::Tensor next_token_loss(const torch::Tensor& logits, const torch::Tensor& targets);

}  // namespace models
