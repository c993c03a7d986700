#pragma once
/// \file
/// Language models as stages of a pipeline.

#include <fsdp/pipeline.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "models/language_model.h"

namespace models {

/// The blocks of the stages that a rank of the pipeline's axis has, one range for each: every stage of the model has as
/// many blocks as the others, or one more. Throws std::invalid_argument for fewer blocks than stages.
OwnBlocks blocks_of_rank(int64_t blocks, const fsdp::PipelineSchedule& schedule, int rank);

/// Stages that run these blocks of `model`, which is sharded as `group`.
std::vector<fsdp::PipelineStage> stages_of(const std::shared_ptr<LanguageModelImpl>& model, const fsdp::Group& group,
                                           const OwnBlocks& own);

/// The loss of what the last stage gives.
fsdp::Pipeline::Loss loss_of(const std::shared_ptr<LanguageModelImpl>& model, const fsdp::Group& group);

}  // namespace models
