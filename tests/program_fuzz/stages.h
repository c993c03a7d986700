#pragma once
/// \file
/// Trains the model of a kPipeline statement, as stages on the ranks of an axis or as a whole.

#include <fsdp/device_mesh.h>
#include <fsdp/pipeline_schedule.h>
#include <torch/torch.h>

#include <cstdint>
#include <vector>

#include "program_fuzz/program.h"

namespace fsdp::test::fuzz {

/// The pipeline of a statement. Neighbouring ranks share a stage, and each of them has its own batch.
struct StagesPlan {
  static constexpr int kSchedules = 4;  ///< GPipe, 1F1B, interleaved 1F1B, TeraPipe
  static constexpr int64_t kTokens = 5, kWidth = 4;

  int ranks, sharers;  ///< numbers of ranks: on the axis of stages, and per stage
  PipelineSchedule schedule;
  int64_t batch;
  int layers, frozen;  ///< number of layers, and how many of the first layers are frozen

  /// Returns an input of sizes [batch, tokens, width], the same on all ranks of a row.
  torch::Tensor input(int64_t seed, int row, int step) const;
};
StagesPlan stages_plan_of(const Program& program, const Statement& s);

constexpr int kStageSteps = 2;
constexpr double kStageRate = 0.2;

/// Causal attention between two layers. Its initial values depend only on its place.
struct StageLayerImpl : torch::nn::Module {
  StageLayerImpl(int place, bool is_frozen);
  torch::Tensor forward(const torch::Tensor& x);
  torch::Tensor inward, outward;
};
TORCH_MODULE(StageLayer);

torch::nn::Sequential layers_of(const StagesPlan& plan);

/// Both functions return what the statement records on a rank: the losses of its row, and the parameters of its stages.
/// trained_as_stages() is collective. Its stages lie along the axis "replicate" of `mesh`, and each is sharded over
/// "shard".
std::vector<torch::Tensor> trained_whole(const Program& program, const Statement& s, int rank);
std::vector<torch::Tensor> trained_as_stages(const Program& program, const Statement& s, const DeviceMesh& mesh);

}  // namespace fsdp::test::fuzz
