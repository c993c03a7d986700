#pragma once
/// \file
/// A GPT as anyone would write it for LibTorch: nothing in it is about sharding, but for fsdp::positions and a block of
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
  /// Share of the values set to zero in training: of the embeddings, of attention's weights, and of what attention and
  /// the network of each block give.
  double dropout = 0;
  /// GELU by its approximation with tanh, as GPT-2 has it.
  bool tanh_gelu = false;
};

/// Attention and a two-layer network, each behind a norm and beside a residual connection.
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

/// The part of a Block that a rank of the axis has.
class BlockPartImpl : public BlockOf<LayerParts> {
 public:
  BlockPartImpl(const GPTConfig& config, const TensorAxis& axis) : BlockOf(config, {{}, axis}) {}
};
TORCH_MODULE(BlockPart);

/// Modules are made in the order tok, pos, blocks, norm, head. The order is part of the contract: one seed gives the
/// same initial values as the same model written in Python.
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
