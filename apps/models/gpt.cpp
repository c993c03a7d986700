#include "models/gpt.h"

#include <fsdp/sequence_parallel.h>
#include <torch/torch.h>

#include <algorithm>

namespace models {
namespace nn = torch::nn;

namespace {

nn::LayerNorm layer_norm(int64_t dim) { return nn::LayerNorm(nn::LayerNormOptions({dim})); }

}  // namespace

template <class Layers>
BlockOf<Layers>::BlockOf(const GPTConfig& config, const Layers& layers)
    : ln1(layer_norm(config.dim)),
      ln2(layer_norm(config.dim)),
      qkv(layers.inward(config.dim, 3 * config.dim, /*fused=*/3)),
      proj(layers.outward(config.dim, config.dim)),
      fc(layers.inward(config.dim, 4 * config.dim)),
      fc2(layers.outward(4 * config.dim, config.dim)),
      heads_(layers.own_heads(config.heads)),
      dropout_(config.dropout),
      tanh_gelu_(config.tanh_gelu) {
  TORCH_CHECK_VALUE(config.heads > 0 && config.dim % config.heads == 0, "a GPT block's dim (", config.dim,
                    ") must be a multiple of its number of heads (", config.heads, ")");
  register_module("ln1", ln1);
  register_module("ln2", ln2);
  register_module("qkv", qkv);
  register_module("proj", proj);
  register_module("fc", fc);
  register_module("fc2", fc2);
}

template <class Layers>
torch::Tensor BlockOf<Layers>::attention(const torch::Tensor& x) {
  const auto parts = qkv(x).unflatten(-1, {3, heads_, -1}).permute({2, 0, 3, 1, 4});
  const auto mixed = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], /*attn_mask=*/{},
                                                         is_training() ? dropout_ : 0.0, /*is_causal=*/true);
  return torch::dropout(proj(mixed.transpose(1, 2).flatten(2)), dropout_, is_training());
}

template <class Layers>
torch::Tensor BlockOf<Layers>::forward(torch::Tensor x) {
  x = x + attention(ln1(x));
  const auto hidden = torch::gelu(fc(ln2(x)), tanh_gelu_ ? "tanh" : "none");
  return x + torch::dropout(fc2(hidden), dropout_, is_training());
}

template class BlockOf<WholeLayers>;
template class BlockOf<LayerParts>;

GPTImpl::GPTImpl(const GPTConfig& config, const TensorAxis& axis, const OwnBlocks& own)
    : tok(config.vocab, config.dim),
      pos(config.seq, config.dim),
      blocks(make_blocks<Block, BlockPart>(config, axis, own)),
      norm(layer_norm(config.dim)),
      dropout_(config.dropout) {
  head = nn::Linear(nn::LinearOptions(config.dim, config.vocab).bias(false));
  if (has_block(own, 0)) {
    register_module("tok", tok);
    register_module("pos", pos);
  } else {
    tok = pos = nn::Embedding(nullptr);
  }
  register_module("blocks", blocks);
  if (has_block(own, config.layers - 1)) {
    register_module("norm", norm);
    register_module("head", head);
  } else {
    norm = nullptr;
    head = nullptr;
  }
}

torch::Tensor GPTImpl::run_blocks(torch::Tensor x, BlockRange range) {
  if (range.first == 0) {
    x = tok(x) + pos(fsdp::positions(x.size(1), x.device()));
    x = torch::dropout(x, dropout_, is_training());
  }
  const auto layers = static_cast<int64_t>(blocks->size());
  for (int64_t i = range.first; i < std::min(range.end, layers); ++i) {
    const auto run = [block = blocks->ptr(static_cast<size_t>(i))](const torch::Tensor& h) {
      auto* whole = block->as<BlockImpl>();
      return whole ? whole->forward(h) : block->as<BlockPartImpl>()->forward(h);
    };
    x = run_part(run_block, run, x);
  }
  return range.end >= layers ? norm(x) : x;
}

}  // namespace models
