#pragma once
/// \file
/// Trains the model and prints the progress.

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
  /// Mean loss in nats per token over the whole validation text.
  double validation_loss = 0;
  double training_seconds = 0;
  /// Number of tokens on which all ranks together have trained.
  int64_t tokens = 0;
  /// False if a signal ended the training.
  bool is_complete = true;
};

/// Starting at the trainer's place, trains on this rank's share of every batch and on its part of each sequence. If
/// `stages` is not null, its pipeline runs the steps. Rank 0 prints progress, with losses in nats per `unit`. `metrics`
/// records every step. Collective.
Outcome train(fsdp::Trainer& trainer, Model& model, Stages* stages, torch::optim::Optimizer& optimizer,
              const text::TextBatches& batches, const Axes& axes, std::string_view unit, frame::StepMetrics& metrics,
              const Arguments& arguments);

}  // namespace gpt
