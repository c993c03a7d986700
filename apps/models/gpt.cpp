#include "models/gpt.h"

#include <fsdp/sequence_parallel.h>
#include <torch/torch.h>

namespace models {
namespace nn = torch::nn;

namespace {

nn::LayerNorm layer_norm(int64_t dim) { return nn::LayerNorm(nn::LayerNormOptions({dim})); }

nn::ModuleList make_blocks(const GPTConfig& config, const TensorAxis& axis) {
  nn::ModuleList blocks;
  for (int64_t i = 0; i < config.layers; ++i) {
    if (axis)
      blocks->push_back(BlockPart(config, axis));
    else
      blocks->push_back(Block(config));
  }
  return blocks;
}

// Of one rank.
int64_t heads_of_part(const GPTConfig& config, const TensorAxis& axis) {
  const int64_t ranks = axis->world_size();
  TORCH_CHECK_VALUE(config.heads % ranks == 0, "a GPT block's heads (", config.heads, ") must be a multiple of the ",
                    ranks, " ranks of its tensor axis");
  return config.heads / ranks;
}

}  // namespace

template <class Inward, class Outward>
BlockOf<Inward, Outward>::BlockOf(const GPTConfig& config, Layers layers, int64_t heads)
    : ln1(layer_norm(config.dim)),
      ln2(layer_norm(config.dim)),
      qkv(std::move(layers.qkv)),
      proj(std::move(layers.proj)),
      fc(std::move(layers.fc)),
      fc2(std::move(layers.fc2)),
      heads_(heads),
      dropout_(config.dropout),
      tanh_gelu_(config.tanh_gelu) {
  TORCH_CHECK_VALUE(config.heads > 0 && config.dim % config.heads == 0, "a GPT block's dim (", config.dim,
                    ") must be a multiple of its heads (", config.heads, ")");
  register_module("ln1", ln1);
  register_module("ln2", ln2);
  register_module("qkv", qkv);
  register_module("proj", proj);
  register_module("fc", fc);
  register_module("fc2", fc2);
}

BlockImpl::BlockImpl(const GPTConfig& config)
    : BlockOf(config,
              {nn::Linear(config.dim, 3 * config.dim), nn::Linear(config.dim, config.dim),
               nn::Linear(config.dim, 4 * config.dim), nn::Linear(4 * config.dim, config.dim)},
              config.heads) {}

BlockPartImpl::BlockPartImpl(const GPTConfig& config, const TensorAxis& axis)
    : BlockOf(config,
              {fsdp::ColumnParallelLinear(nn::LinearOptions(config.dim, 3 * config.dim),
                                          fsdp::TensorParallelOptions{axis}, /*gather_output=*/false,
                                          /*fused=*/3),
               fsdp::RowParallelLinear(nn::LinearOptions(config.dim, config.dim),
                                       fsdp::TensorParallelOptions{axis}),
               fsdp::ColumnParallelLinear(nn::LinearOptions(config.dim, 4 * config.dim),
                                          fsdp::TensorParallelOptions{axis}),
               fsdp::RowParallelLinear(nn::LinearOptions(4 * config.dim, config.dim),
                                       fsdp::TensorParallelOptions{axis})},
              heads_of_part(config, axis)) {}

template <class Inward, class Outward>
torch::Tensor BlockOf<Inward, Outward>::attention(const torch::Tensor& x) {
  const auto parts = qkv(x).unflatten(-1, {3, heads_, -1}).permute({2, 0, 3, 1, 4});
  const auto mixed = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], /*attn_mask=*/{},
                                                         is_training() ? dropout_ : 0.0, /*is_causal=*/true);
  return torch::dropout(proj(mixed.transpose(1, 2).flatten(2)), dropout_, is_training());
}

template <class Inward, class Outward>
torch::Tensor BlockOf<Inward, Outward>::forward(torch::Tensor x) {
  x = x + attention(ln1(x));
  const auto hidden = torch::gelu(fc(ln2(x)), tanh_gelu_ ? "tanh" : "none");
  return x + torch::dropout(fc2(hidden), dropout_, is_training());
}

GPTImpl::GPTImpl(const GPTConfig& config, const TensorAxis& axis)
    : tok(config.vocab, config.dim),
      pos(config.seq, config.dim),
      blocks(make_blocks(config, axis)),
      norm(layer_norm(config.dim)),
      dropout_(config.dropout) {
  register_module("tok", tok);
  register_module("pos", pos);
  register_module("blocks", blocks);
  register_module("norm", norm);
  head = register_module("head", nn::Linear(nn::LinearOptions(config.dim, config.vocab).bias(false)));
}

torch::Tensor GPTImpl::features(const torch::Tensor& ids) {
  auto x = tok(ids) + pos(fsdp::positions(ids.size(1), ids.device()));
  x = torch::dropout(x, dropout_, is_training());
  for (const auto& block : *blocks) {
    const auto run = [block](const torch::Tensor& h) {
      auto* whole = block->as<BlockImpl>();
      return whole ? whole->forward(h) : block->as<BlockPartImpl>()->forward(h);
    };
    x = run_part(run_block, run, x);
  }
  return norm(x);
}

}  // namespace models
