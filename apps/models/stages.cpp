#include "models/stages.h"

#include <fsdp/scopes.h>

#include <stdexcept>
#include <string>

namespace models {

OwnBlocks blocks_of_rank(int64_t blocks, const fsdp::PipelineSchedule& schedule, int rank) {
  const int64_t stages = schedule.stages();
  if (blocks < stages)
    throw std::invalid_argument("expected at least one block for each of the " + std::to_string(stages) +
                                " stages of the pipeline, found " + std::to_string(blocks) + " blocks");
  OwnBlocks own;
  for (int64_t stage = rank; stage < stages; stage += schedule.ranks)
    own.push_back({blocks * stage / stages, blocks * (stage + 1) / stages});
  return own;
}

std::vector<fsdp::PipelineStage> stages_of(const std::shared_ptr<LanguageModelImpl>& model, const fsdp::Group& group,
                                           const OwnBlocks& own) {
  std::vector<fsdp::PipelineStage> stages;
  for (const auto& blocks : own) {
    const auto run = [model, group, blocks](const torch::Tensor& x) {
      const fsdp::ForwardScope scope(group);
      return model->run_blocks(x, blocks);
    };
    stages.emplace_back(run, group);
  }
  return stages;
}

fsdp::Pipeline::Loss loss_of(const std::shared_ptr<LanguageModelImpl>& model, const fsdp::Group& group) {
  return [model, group](const torch::Tensor& features, const torch::Tensor& targets) {
    const fsdp::ForwardScope scope(group);
    return model->loss(features, targets);
  };
}

}  // namespace models
