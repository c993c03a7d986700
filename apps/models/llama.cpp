#include "models/llama.h"

#include <fsdp/sequence_parallel.h>
#include <torch/types.h>

#include <algorithm>

namespace models {
namespace {

int64_t head_size(const LlamaConfig& config) {
  TORCH_CHECK_VALUE(config.heads > 0 && config.dim % config.heads == 0, "a Llama's dim (", config.dim,
                    ") must be a multiple of its number of heads (", config.heads, ")");
  return config.dim / config.heads;
}

/// A GPT's MLP has two matrices with 4 dim inner features. SwiGLU has three matrices, so it has as many parameters with
/// 8/3 dim inner features, rounded up to a multiple of 32.
int64_t hidden_size(int64_t dim) {
  constexpr int64_t kMultiple = 32;
  return (8 * dim / 3 + kMultiple - 1) / kMultiple * kMultiple;
}

}  // namespace

template <class Layers>
LlamaBlockOf<Layers>::LlamaBlockOf(const LlamaConfig& config, const Layers& layers)
    : norm1(config.dim),
      norm2(config.dim),
      qkv(layers.inward(config.dim, 3 * config.dim, /*fused=*/3)),
      proj(layers.outward(config.dim, config.dim)),
      mlp(std::make_shared<SwiGLUOf<Layers>>(config.dim, hidden_size(config.dim), layers)),
      heads_(layers.own_heads(config.heads)),
      dropout_(config.dropout) {
  register_module("norm1", norm1);
  register_module("norm2", norm2);
  register_module("qkv", qkv);
  register_module("proj", proj);
  register_module("mlp", mlp);
}

template <class Layers>
torch::Tensor LlamaBlockOf<Layers>::attention(const torch::Tensor& x, const Rotations& by) {
  const auto parts = qkv(x).unflatten(-1, {3, heads_, -1}).permute({2, 0, 3, 1, 4});
  const auto mixed = torch::scaled_dot_product_attention(rotate(parts[0], by), rotate(parts[1], by), parts[2],
                                                         /*attn_mask=*/{}, is_training() ? dropout_ : 0.0,
                                                         /*is_causal=*/true);
  return torch::dropout(proj(mixed.transpose(1, 2).flatten(2)), dropout_, is_training());
}

template <class Layers>
torch::Tensor LlamaBlockOf<Layers>::forward(torch::Tensor x, const Rotations& by) {
  x = x + attention(norm1(x), by);
  return x + torch::dropout(mlp->forward(norm2(x)), dropout_, is_training());
}

template class LlamaBlockOf<WholeLayers>;
template class LlamaBlockOf<LayerParts>;

LlamaImpl::LlamaImpl(const LlamaConfig& config, const TensorAxis& axis, const OwnBlocks& own)
    : tok(config.vocab, config.dim),
      blocks(make_blocks<LlamaBlock, LlamaBlockPart>(config, axis, own)),
      norm(config.dim),
      rotations_(rotations(config.seq, head_size(config))),
      dropout_(config.dropout) {
  head = WholeLayers{.has_bias = false}.outward(config.dim, config.vocab);
  if (has_block(own, 0))
    register_module("tok", tok);
  else
    tok = nullptr;
  register_module("blocks", blocks);
  if (has_block(own, config.layers - 1)) {
    register_module("norm", norm);
    register_module("head", head);
  } else {
    norm = nullptr;
    head = nullptr;
  }
  register_buffer("cos", rotations_.cos);
  register_buffer("sin", rotations_.sin);
}

torch::Tensor LlamaImpl::run_blocks(torch::Tensor x, BlockRange range) {
  const auto positions = fsdp::positions(x.size(1), x.device());
  const Rotations by{rotations_.cos.index_select(0, positions), rotations_.sin.index_select(0, positions)};
  if (range.first == 0) x = torch::dropout(tok(x), dropout_, is_training());
  const auto layers = static_cast<int64_t>(blocks->size());
  for (int64_t i = range.first; i < std::min(range.end, layers); ++i) {
    const auto run = [block = blocks->ptr(static_cast<size_t>(i)), by](const torch::Tensor& h) {
      auto* whole = block->as<LlamaBlockImpl>();
      return whole ? whole->forward(h, by) : block->as<LlamaBlockPartImpl>()->forward(h, by);
    };
    x = run_part(run_block, run, x);
  }
  return range.end >= layers ? norm(x) : x;
}

}  // namespace models
