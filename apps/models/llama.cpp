#include "models/llama.h"

#include <fsdp/sequence_parallel.h>
#include <torch/types.h>

namespace models {
namespace {

torch::nn::Linear unbiased(int64_t in, int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

int64_t head_size(const LlamaConfig& config) {
  TORCH_CHECK_VALUE(config.heads > 0 && config.dim % config.heads == 0, "a Llama's dim (", config.dim,
                    ") must be a multiple of its heads (", config.heads, ")");
  return config.dim / config.heads;
}

/// SwiGLU has three matrices where a GPT has two of 4 dim: 8/3 dim, rounded up to a multiple of 32.
int64_t hidden_size(int64_t dim) {
  constexpr int64_t kMultiple = 32;
  return (8 * dim / 3 + kMultiple - 1) / kMultiple * kMultiple;
}

torch::nn::ModuleList make_llama_blocks(const LlamaConfig& config) {
  torch::nn::ModuleList blocks;
  for (int64_t i = 0; i < config.layers; ++i) blocks->push_back(LlamaBlock(config));
  return blocks;
}

}  // namespace

LlamaBlockImpl::LlamaBlockImpl(const LlamaConfig& config)
    : norm1(config.dim),
      norm2(config.dim),
      qkv(unbiased(config.dim, 3 * config.dim)),
      proj(unbiased(config.dim, config.dim)),
      mlp(config.dim, hidden_size(config.dim)),
      heads_(config.heads),
      dropout_(config.dropout) {
  register_module("norm1", norm1);
  register_module("norm2", norm2);
  register_module("qkv", qkv);
  register_module("proj", proj);
  register_module("mlp", mlp);
}

torch::Tensor LlamaBlockImpl::attention(const torch::Tensor& x, const Rotations& by) {
  const int64_t batch = x.size(0), tokens = x.size(1), dim = x.size(2);
  const auto parts = qkv(x).view({batch, tokens, 3, heads_, dim / heads_}).permute({2, 0, 3, 1, 4});
  const auto mixed = torch::scaled_dot_product_attention(rotate(parts[0], by), rotate(parts[1], by), parts[2],
                                                         /*attn_mask=*/{}, is_training() ? dropout_ : 0.0,
                                                         /*is_causal=*/true);
  return torch::dropout(proj(mixed.transpose(1, 2).reshape({batch, tokens, dim})), dropout_, is_training());
}

torch::Tensor LlamaBlockImpl::forward(torch::Tensor x, const Rotations& by) {
  x = x + attention(norm1(x), by);
  return x + torch::dropout(mlp(norm2(x)), dropout_, is_training());
}

LlamaImpl::LlamaImpl(const LlamaConfig& config)
    : tok(config.vocab, config.dim),
      blocks(make_llama_blocks(config)),
      norm(config.dim),
      rotations_(rotations(config.seq, head_size(config))),
      dropout_(config.dropout) {
  register_module("tok", tok);
  register_module("blocks", blocks);
  register_module("norm", norm);
  head = register_module("head", unbiased(config.dim, config.vocab));
  register_buffer("cos", rotations_.cos);
  register_buffer("sin", rotations_.sin);
}

torch::Tensor LlamaImpl::features(const torch::Tensor& ids) {
  const auto positions = fsdp::positions(ids.size(1), ids.device());
  const Rotations by{rotations_.cos.index_select(0, positions), rotations_.sin.index_select(0, positions)};
  auto x = torch::dropout(tok(ids), dropout_, is_training());
  for (const auto& block : *blocks) {
    const auto run = [block, by](const torch::Tensor& h) { return block->as<LlamaBlockImpl>()->forward(h, by); };
    x = run_part(run_block, run, x);
  }
  return norm(x);
}

}  // namespace models
