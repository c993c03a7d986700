#pragma once
/// \file
/// Stages of one model on meshes of many shapes, for tests that concern all stages.

#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/oracle.h"

namespace fsdp::test {

constexpr int64_t kBlockDim = 4, kBlockRows = 8;
constexpr int kBlocks = 6;

/// A residual block of two linear layers. They are whole, or split over the ranks of a tensor axis.
struct PipedBlockImpl : torch::nn::Module {
  explicit PipedBlockImpl(const std::shared_ptr<ProcessGroup>& tensor = nullptr) {
    const torch::nn::LinearOptions widens(kBlockDim, 2 * kBlockDim), narrows(2 * kBlockDim, kBlockDim);
    if (tensor) {
      column = register_module("up", ColumnParallelLinear(widens, TensorParallelOptions{.axis = tensor}));
      row = register_module("down", RowParallelLinear(narrows, TensorParallelOptions{.axis = tensor}));
    } else {
      up = register_module("up", torch::nn::Linear(widens));
      down = register_module("down", torch::nn::Linear(narrows));
    }
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kBlockDim})));
    seen = register_buffer("seen", at::zeros({2}, at::kDouble));
  }
  at::Tensor forward(const at::Tensor& x) {
    if (is_training()) seen.add_(1);
    return x + norm(column ? row(column(x).tanh()) : down(up(x).tanh()));
  }

  torch::nn::Linear up{nullptr}, down{nullptr};
  ColumnParallelLinear column{nullptr};
  RowParallelLinear row{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  at::Tensor seen;
};
TORCH_MODULE(PipedBlock);

inline torch::nn::Sequential piped_model(const std::shared_ptr<ProcessGroup>& tensor = nullptr) {
  torch::nn::Sequential model;
  for (int block = 0; block < kBlocks; ++block) model->push_back(PipedBlock(tensor));
  model->to(torch::kDouble);
  return model;
}

inline at::Tensor piped_rows(int step) {
  const auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(300 + step));
  return at::randn({kBlockRows, kBlockDim}, generator, at::kDouble);
}

inline at::Tensor piped_loss(const at::Tensor& output, const at::Tensor& target) {
  return (output - target).square().mean();
}

/// The mesh and the placement of a model's stages.
struct PipedLayout {
  std::vector<int> mesh;  ///< numbers of ranks along data, pipe, sequence and tensor
  bool is_sharded = true;
  int chunks = 1;
  int frozen_blocks = 0;

  int ranks() const { return c10::multiply_integers(mesh); }
  std::string text() const {
    return c10::str("mesh ", mesh, is_sharded ? ", sharded" : ", plain", ", ", chunks, " chunks, ", frozen_blocks,
                    " frozen blocks");
  }
};

/// This rank's stages. Each rank of the data and sequence axes has its own rows of the batch.
struct PipedRank {
  explicit PipedRank(const PipedLayout& where)
      : layout(where),
        mesh(init_device_mesh(layout.mesh, {"data", "pipe", "sequence", "tensor"})),
        pipe(mesh.process_group("pipe")),
        shard(mesh[{"data", "sequence"}].flatten("shard")),
        pipeline(stages(), one_forward_one_backward_schedule(pipe->world_size(), 4 / shard.size(), layout.chunks),
                 pipe) {}

  std::vector<PipelineStage> stages() {
    const bool has_parts = mesh.size("tensor") > 1;
    const auto model = build_alike([&] { return piped_model(has_parts ? mesh.process_group("tensor") : nullptr); });
    for (int block = 0; block < layout.frozen_blocks; ++block)
      for (auto& parameter : model->children()[static_cast<size_t>(block)]->parameters())
        parameter.requires_grad_(false);
    const int ranks = pipe->world_size();
    const auto all = split_stages(model, ranks * layout.chunks);
    std::vector<PipelineStage> made;
    for (int stage = pipe->rank(); stage < ranks * layout.chunks; stage += ranks) {
      own.push_back(all[static_cast<size_t>(stage)]);
      // Stages are made from modules and from functions of modules in turn.
      if (layout.is_sharded) {
        auto group = groups.emplace_back(fully_shard(own.back(), {.mesh = shard}));
        if (stage % 2 == 0)
          made.emplace_back(group);
        else
          made.emplace_back([group](const at::Tensor& x) mutable { return group(x); }, group);
      } else if (auto layers = own.back(); stage % 2 == 0) {
        made.emplace_back(layers);
      } else {
        made.emplace_back([layers](const at::Tensor& x) mutable { return layers->forward(x); }, layers);
      }
    }
    return made;
  }

  at::Tensor step(int number, const Pipeline::Loss& loss = piped_loss) {
    const auto rows = [&](const at::Tensor& all) {
      return all.chunk(shard.size())[static_cast<size_t>(shard.coordinate("shard"))];
    };
    return pipeline.step(rows(piped_rows(number)), rows(piped_rows(number).flip(0)), loss);
  }

  PipedLayout layout;
  DeviceMesh mesh;
  std::shared_ptr<ProcessGroup> pipe;
  DeviceMesh shard;
  std::vector<torch::nn::Sequential> own;
  std::vector<Sharded<torch::nn::Sequential>> groups;
  Pipeline pipeline;
};

}  // namespace fsdp::test
