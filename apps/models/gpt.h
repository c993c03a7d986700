#pragma once
/// \file
/// A GPT as anyone would write it for LibTorch. Only two things in it concern sharding: fsdp::positions, and a block of
/// which each rank of a tensor axis has a part.

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include "models/language_model.h"
#include "models/layers.h"

namespace models {

struct GPTConfig {
  int64_t vocab = 0;
  /// Longest context, in tokens.
  int64_t seq = 0;
  /// Width of the residual stream; a multiple of `heads`.
  int64_t dim = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  /// Share of the values that training sets to zero: of the embeddings, of the attention weights, and of the outputs of
  /// each block's attention and MLP.
  double dropout = 0;
  /// True if GELU is approximated with tanh, as in GPT-2.
  bool tanh_gelu = false;
};

/// A transformer block: attention and an MLP of two layers. Each follows a layer norm and has a residual connection.
template <class Layers>
class BlockOf : public torch::nn::Module {
 public:
  torch::Tensor forward(torch::Tensor x);

  torch::nn::LayerNorm ln1, ln2;
  typename Layers::Inward qkv;
  typename Layers::Outward proj;
  typename Layers::Inward fc;
  typename Layers::Outward fc2;

 protected:
  BlockOf(const GPTConfig& config, const Layers& layers);

 private:
  torch::Tensor attention(const torch::Tensor& x);

  int64_t heads_;
  double dropout_;
  bool tanh_gelu_;
};

class BlockImpl : public BlockOf<WholeLayers> {
 public:
  explicit BlockImpl(const GPTConfig& config) : BlockOf(config, {}) {}
};
TORCH_MODULE(Block);

/// The part of a Block that one rank of the tensor axis has.
class BlockPartImpl : public BlockOf<LayerParts> {
 public:
  BlockPartImpl(const GPTConfig& config, const TensorAxis& axis) : BlockOf(config, {{}, axis}) {}
};
TORCH_MODULE(BlockPart);

/// The constructor makes the modules in the order tok, pos, blocks, norm, head. Callers rely on this order: with the
/// same seed, a model that Python makes in this order has the same initial values.
class GPTImpl : public LanguageModelImpl {
 public:
  explicit GPTImpl(const GPTConfig& config, const TensorAxis& axis = nullptr, const OwnBlocks& own = {});
  torch::Tensor run_blocks(torch::Tensor x, BlockRange blocks) override;

  torch::nn::Embedding tok, pos;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm;

 private:
  double dropout_;
};
TORCH_MODULE(GPT);

}  // namespace models
