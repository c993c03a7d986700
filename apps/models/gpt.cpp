#include "models/gpt.h"

#include <fsdp/sequence_parallel.h>
#include <torch/torch.h>

namespace models {
namespace nn = torch::nn;

namespace {

nn::LayerNorm layer_norm(int64_t dim) { return nn::LayerNorm(nn::LayerNormOptions({dim})); }

nn::ModuleList make_blocks(const GPTConfig& config) {
  nn::ModuleList blocks;
  for (int64_t i = 0; i < config.layers; ++i)
    blocks->push_back(Block(config.dim, config.heads, config.dropout, config.tanh_gelu));
  return blocks;
}

}  // namespace

BlockImpl::BlockImpl(int64_t dim, int64_t heads, double dropout, bool tanh_gelu)
    : ln1(layer_norm(dim)),
      ln2(layer_norm(dim)),
      qkv(dim, 3 * dim),
      proj(dim, dim),
      fc(dim, 4 * dim),
      fc2(4 * dim, dim),
      heads_(heads),
      dropout_(dropout),
      tanh_gelu_(tanh_gelu) {
  TORCH_CHECK_VALUE(heads > 0 && dim % heads == 0, "a GPT block's dim (", dim, ") must be a multiple of its heads (",
                    heads, ")");
  register_module("ln1", ln1);
  register_module("ln2", ln2);
  register_module("qkv", qkv);
  register_module("proj", proj);
  register_module("fc", fc);
  register_module("fc2", fc2);
}

torch::Tensor BlockImpl::attention(const torch::Tensor& x) {
  const int64_t batch = x.size(0), tokens = x.size(1), dim = x.size(2);
  const auto parts = qkv(x).view({batch, tokens, 3, heads_, dim / heads_}).permute({2, 0, 3, 1, 4});
  const auto mixed = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], /*attn_mask=*/{},
                                                         is_training() ? dropout_ : 0.0, /*is_causal=*/true);
  return torch::dropout(proj(mixed.transpose(1, 2).reshape({batch, tokens, dim})), dropout_, is_training());
}

torch::Tensor BlockImpl::forward(torch::Tensor x) {
  x = x + attention(ln1(x));
  const auto hidden = torch::gelu(fc(ln2(x)), tanh_gelu_ ? "tanh" : "none");
  return x + torch::dropout(fc2(hidden), dropout_, is_training());
}

GPTImpl::GPTImpl(const GPTConfig& config)
    : tok(config.vocab, config.dim),
      pos(config.seq, config.dim),
      blocks(make_blocks(config)),
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
  for (const auto& block : *blocks)
    x = run_part(run_block, [block](const torch::Tensor& h) { return block->as<BlockImpl>()->forward(h); }, x);
  return norm(x);
}

}  // namespace models
