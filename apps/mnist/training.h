#pragma once
/// \file
/// Trains the network, and tests it after each epoch.

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

/// Images, and the sampler that gives this rank its share of them.
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

/// Results of an epoch over all ranks.
struct EpochResult {
  /// Mean loss of the training images. Each image's loss is from before the step in which the image takes part.
  double loss = 0;
  /// Results on the test images, each of which is counted once.
  TestResult test = {};
};

/// Trains on this rank's share of the images and tests after each epoch. Rank 0 prints the results. The learning rate
/// is multiplied by `gamma` after each epoch. `metrics` records every epoch. Returns the results of the epochs.
/// Collective.
std::vector<EpochResult> train(fsdp::Trainer& trainer, Model& model, torch::optim::Optimizer& optimizer, Share& images,
                               Share& tested, frame::StepMetrics& metrics, double gamma);

}  // namespace mnist
