#pragma once
/// \file
/// Records the metrics of each step.

#include <string_view>

#include "arguments.h"
#include "axes.h"
#include "frame/step_metrics.h"
#include "model.h"
#include "text/text_batches.h"

namespace gpt {

/// Returns the metrics that the flags ask for. The number of operations per token (Note [MFU]) counts all parameters
/// but the embeddings of tokens and, in a GPT, of positions, because the model only looks those up. If `first`, the
/// number of steps done before, is above 0, the metrics are appended to existing files. Collective.
frame::StepMetrics step_metrics(const Model& model, const Axes& axes, c10::Device device, int64_t vocabulary,
                                const text::TextBatches& batches, int64_t first, std::string_view unit,
                                const Arguments& arguments);

}  // namespace gpt
