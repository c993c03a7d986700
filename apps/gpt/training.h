#pragma once
/// \file
/// Training, and what is printed of it.

#include <fsdp/optim.h>
#include <fsdp/trainer.h>

#include <string_view>

#include "arguments.h"
#include "axes.h"
#include "frame/step_metrics.h"
#include "model.h"
#include "stages.h"
#include "text/text_batches.h"

namespace gpt {

struct Outcome {
  /// Nats per token, over all ranks' shares of the validation text.
  double validation_loss = 0;
  double training_seconds = 0;
  /// Tokens trained on, over all ranks.
  int64_t tokens = 0;
  /// Not where a signal ended it.
  bool is_complete = true;
};

/// Trains on this rank's share of every batch, and on its tokens of each sequence, from where the trainer is, through
/// the `stages` of --pipe if they are not null; rank 0 prints progress, with losses in nats per `unit`; `metrics` gets
/// every step. Collective.
Outcome train(fsdp::Trainer& trainer, Model& model, Stages* stages, torch::optim::Optimizer& optimizer,
              const text::TextBatches& batches, const Axes& axes, std::string_view unit, frame::StepMetrics& metrics,
              const Arguments& arguments);

}  // namespace gpt
