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

/// As the flags say, with the operations of a token (Note [MFU]): of the parameters all but the embeddings, which
/// tokens look up, of tokens and, in a GPT, of places. Collective.
frame::StepMetrics step_metrics(const Model& model, const Axes& axes, c10::Device device, int64_t vocabulary,
                                const text::TextBatches& batches, int64_t first, std::string_view unit,
                                const Arguments& arguments);

}  // namespace gpt
