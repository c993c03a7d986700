#pragma once
/// \file
/// Splits language models into the stages of a pipeline.

#include <fsdp/pipeline.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "models/language_model.h"

namespace models {

/// Returns the blocks of each stage that a rank of the pipeline's axis has, one range for each stage. The numbers of
/// blocks of two stages differ by at most one. Throws std::invalid_argument if there are fewer blocks than stages.
OwnBlocks blocks_of_rank(int64_t blocks, const fsdp::PipelineSchedule& schedule, int rank);

/// Returns one stage for each range in `own`. The stage runs these blocks of `model`, which is sharded as `group`.
std::vector<fsdp::PipelineStage> stages_of(const std::shared_ptr<LanguageModelImpl>& model, const fsdp::Group& group,
                                           const OwnBlocks& own);

/// Returns the function that computes the loss from the output of the last stage.
fsdp::Pipeline::Loss loss_of(const std::shared_ptr<LanguageModelImpl>& model, const fsdp::Group& group);

}  // namespace models
