#pragma once
/// \file
/// Training over the epochs, with the test after each.

#include <fsdp/optim.h>
#include <fsdp/samplers.h>
#include <fsdp/trainer.h>
#include "images/images.h"

#include <memory>
#include <vector>

#include "arguments.h"
#include "frame/step_metrics.h"
#include "models/classifier.h"

namespace mnist {

using Model = fsdp::Sharded<std::shared_ptr<models::Classifier>>;

/// Images, and this rank's share of them.
struct Share {
  images::ImageDataset dataset;
  fsdp::data::DistributedSampler sampler;
  int64_t batch_size;
  c10::Device device;
};

struct TestResult {
  double average_loss = 0;
  int64_t correct = 0, samples = 0;
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(samples); }
};

/// What an epoch gave, over all ranks.
struct EpochResult {
  /// The mean of the images', each before the step that it is part of.
  double loss = 0;
  /// Each image counted once.
  TestResult test = {};
};

/// Trains on this rank's share of the images and tests after each epoch; rank 0 prints both. The learning rate is
/// multiplied by `gamma` from one epoch to the next. `metrics` gets every epoch. Returns what the epochs gave.
/// Collective.
std::vector<EpochResult> train(fsdp::Trainer& trainer, Model& model, torch::optim::Optimizer& optimizer, Share& images,
                               Share& tested, frame::StepMetrics& metrics, double gamma);

}  // namespace mnist
