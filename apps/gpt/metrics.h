#pragma once
/// \file
/// What is written down of each step of gpt.

#include <string_view>

#include "arguments.h"
#include "axes.h"
#include "model.h"
#include "train/data/text_batches.h"
#include "train/step_metrics.h"

namespace gpt {

/// As the flags say, with the operations of a token (Note [MFU]): of the parameters all but the embeddings, which
/// tokens look up, of tokens and, in a GPT, of places. Collective.
fsdp::train::StepMetrics step_metrics(const Model& model, const Axes& axes, c10::Device device, int64_t vocabulary,
                                      const fsdp::data::TextBatches& batches, int64_t first, std::string_view unit,
                                      const Arguments& arguments);

}  // namespace gpt
