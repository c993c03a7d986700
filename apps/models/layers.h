#pragma once
/// \file
/// The linear layers of a block: whole layers, or the parts of layers that one rank of a tensor axis has.

#include <fsdp/tensor_parallel.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "models/language_model.h"

namespace models {

/// The process group whose ranks each have a part of every block: some of the attention heads, and some of the MLP's
/// inner features. If it is null, every rank has whole blocks.
using TensorAxis = std::shared_ptr<fsdp::ProcessGroup>;

/// Makes whole layers, which every rank has.
struct WholeLayers {
  using Inward = torch::nn::Linear;
  using Outward = torch::nn::Linear;

  Inward inward(int64_t in, int64_t out, int64_t /*fused*/ = 1) const { return torch::nn::Linear(options(in, out)); }
  Outward outward(int64_t in, int64_t out) const { return torch::nn::Linear(options(in, out)); }
  torch::nn::LinearOptions options(int64_t in, int64_t out) const {
    return torch::nn::LinearOptions(in, out).bias(has_bias);
  }
  int64_t own_heads(int64_t heads) const { return heads; }

  bool has_bias = true;
};

/// Makes parts of layers. An `inward` layer returns this rank's part of the output features, and an `outward` layer
/// takes this part. An `inward` layer may consist of several matrices (`fused` is their number); it then returns a part
/// of the output of each.
struct LayerParts {
  using Inward = fsdp::ColumnParallelLinear;
  using Outward = fsdp::RowParallelLinear;

  Inward inward(int64_t in, int64_t out, int64_t fused = 1) const {
    return Inward(whole.options(in, out), fsdp::TensorParallelOptions{axis}, /*gather_output=*/false, fused);
  }
  Outward outward(int64_t in, int64_t out) const {
    return Outward(whole.options(in, out), fsdp::TensorParallelOptions{axis});
  }
  int64_t own_heads(int64_t heads) const {
    TORCH_CHECK_VALUE(heads % axis->world_size() == 0, "the number of heads in a block (", heads,
                      ") must be a multiple of the ", axis->world_size(), " ranks on its tensor axis");
    return heads / axis->world_size();
  }

  WholeLayers whole;
  TensorAxis axis;
};

/// True if `block` is one of the blocks `own`.
inline bool has_block(const OwnBlocks& own, int64_t block) {
  const auto is_in = [block](const BlockRange& range) { return range.first <= block && block < range.end; };
  return own.empty() || std::ranges::any_of(own, is_in);
}

/// Returns the blocks of a model: modules of class `Part` if `axis` is not null, else of class `Whole`.
template <class Whole, class Part, class Config>
torch::nn::ModuleList make_blocks(const Config& config, const TensorAxis& axis, const OwnBlocks& own) {
  torch::nn::ModuleList blocks;
  for (int64_t i = 0; i < config.layers; ++i) {
    std::shared_ptr<torch::nn::Module> block;
    if (axis)
      block = Part(config, axis).ptr();
    else
      block = Whole(config).ptr();
    if (!has_block(own, i)) block = torch::nn::Identity().ptr();
    blocks->push_back(std::move(block));
  }
  return blocks;
}

}  // namespace models
