#pragma once
/// \file
/// The training loop.

#include <fsdp/grad_scaler.h>
#include <fsdp/optim.h>

#include <string_view>

#include "arguments.h"
#include "model.h"
#include "train/data/text_batches.h"

namespace gpt {

struct Outcome {
  /// Nats per token, over all ranks' shares of the validation text.
  double validation_loss = 0;
  double training_seconds = 0;
  /// Tokens trained on, over all ranks.
  int64_t tokens = 0;
};

/// Trains on this rank's share of every batch but those of the `first` steps, which were done before; rank 0 prints
/// progress, with losses in nats per `unit`. Writes the checkpoints that the arguments ask for. Collective.
Outcome train(Model& model, torch::optim::Optimizer& optimizer, fsdp::GradScaler& scaler,
              const fsdp::data::TextBatches& batches, int64_t first, std::string_view unit, const Arguments& arguments);

/// Mean loss over the validation text. Collective.
double validation_loss(Model& model, const fsdp::data::TextBatches& batches, const Arguments& arguments);

}  // namespace gpt
