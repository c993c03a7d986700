#pragma once
/// \file
/// A kPipeline: a model of its own trains as stages on the ranks of an axis, or whole.

#include <fsdp/device_mesh.h>
#include <fsdp/pipeline_schedule.h>
#include <torch/torch.h>

#include <cstdint>
#include <vector>

#include "program_fuzz/program.h"

namespace fsdp::test::fuzz {

/// What a statement's pipeline is. Neighbours share a stage, and each of them has a batch of its own.
struct StagesPlan {
  static constexpr int kSchedules = 4;  ///< GPipe, 1F1B, interleaved 1F1B, TeraPipe
  static constexpr int64_t kTokens = 5, kWidth = 4;

  int ranks, sharers;  ///< those of the axis of stages, and how many share a stage
  PipelineSchedule schedule;
  int64_t batch;
  int layers, frozen;  ///< how many there are, and how many of the first ones do not train

  /// [batch, tokens, width], the same on all ranks of a row.
  torch::Tensor input(int64_t seed, int row, int step) const;
};
StagesPlan stages_plan_of(const Program& program, const Statement& s);

constexpr int kStageSteps = 2;
constexpr double kStageRate = 0.2;

/// Causal attention between two layers. Its values depend only on its place.
struct StageLayerImpl : torch::nn::Module {
  StageLayerImpl(int place, bool is_frozen);
  torch::Tensor forward(const torch::Tensor& x);
  torch::Tensor inward, outward;
};
TORCH_MODULE(StageLayer);

torch::nn::Sequential layers_of(const StagesPlan& plan);

/// `mesh`: stages on the ranks of "replicate", each sharded over "shard". What a rank records: the losses of its row,
/// and the parameters of its stages. Sharded, it is collective.
std::vector<torch::Tensor> trained_whole(const Program& program, const Statement& s, int rank);
std::vector<torch::Tensor> trained_as_stages(const Program& program, const Statement& s, const DeviceMesh& mesh);

}  // namespace fsdp::test::fuzz
