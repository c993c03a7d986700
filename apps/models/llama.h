#pragma once
/// \file
/// A model in Llama's style (Touvron et al. 2023): it has RMSNorm, SwiGLU and rotary embeddings, and no biases.

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/pimpl.h>

#include "models/language_model.h"
#include "models/rms_norm.h"
#include "models/rotary.h"
#include "models/swiglu.h"

namespace models {

struct LlamaConfig {
  int64_t vocab = 0;
  /// Longest context, in tokens.
  int64_t seq = 0;
  /// Width of the residual stream; `dim / heads` is whole and even.
  int64_t dim = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  /// Share of the values that training sets to zero, as in GPTConfig.
  double dropout = 0;
};

/// A transformer block: attention and SwiGLU. Each follows an RMSNorm and has a residual connection.
template <class Layers>
class LlamaBlockOf : public torch::nn::Module {
 public:
  /// `by` holds the rotations for the positions of `x`.
  torch::Tensor forward(torch::Tensor x, const Rotations& by);

  RMSNorm norm1, norm2;
  typename Layers::Inward qkv;
  typename Layers::Outward proj;
  std::shared_ptr<SwiGLUOf<Layers>> mlp;

 protected:
  LlamaBlockOf(const LlamaConfig& config, const Layers& layers);

 private:
  torch::Tensor attention(const torch::Tensor& x, const Rotations& by);

  int64_t heads_;
  double dropout_;
};

class LlamaBlockImpl : public LlamaBlockOf<WholeLayers> {
 public:
  explicit LlamaBlockImpl(const LlamaConfig& config) : LlamaBlockOf(config, {.has_bias = false}) {}
};
TORCH_MODULE(LlamaBlock);

/// The part of a LlamaBlock that one rank of the tensor axis has.
class LlamaBlockPartImpl : public LlamaBlockOf<LayerParts> {
 public:
  LlamaBlockPartImpl(const LlamaConfig& config, const TensorAxis& axis)
      : LlamaBlockOf(config, {{.has_bias = false}, axis}) {}
};
TORCH_MODULE(LlamaBlockPart);

class LlamaImpl : public LanguageModelImpl {
 public:
  explicit LlamaImpl(const LlamaConfig& config, const TensorAxis& axis = nullptr, const OwnBlocks& own = {});
  torch::Tensor run_blocks(torch::Tensor x, BlockRange blocks) override;

  torch::nn::Embedding tok;
  torch::nn::ModuleList blocks;
  RMSNorm norm;

 private:
  Rotations rotations_;  // Rotations of all positions; registered as buffers.
  double dropout_;
};
TORCH_MODULE(Llama);

}  // namespace models
