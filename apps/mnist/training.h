#pragma once
/// \file
/// An epoch of training, and the test after it.

#include <fsdp/grad_scaler.h>
#include <fsdp/images.h>
#include <fsdp/optim.h>
#include <fsdp/samplers.h>
#include <fsdp/sharded.h>

#include <memory>

#include "arguments.h"
#include "models/classifier.h"

namespace mnist {

using Model = fsdp::Sharded<std::shared_ptr<models::Classifier>>;

/// Images, and this rank's share of them.
struct Share {
  fsdp::data::ImageDataset dataset;
  fsdp::data::DistributedSampler sampler;
  int64_t batch_size;
  c10::Device device;
};

/// Trains on this rank's share of the images in the order of `epoch`. Returns the mean loss of an image over the
/// ranks. Collective.
double train_epoch(Model& model, torch::optim::Optimizer& optimizer, fsdp::GradScaler& scaler, Share& share, int64_t epoch,
                   const frame::PrecisionFlags& precision);

struct TestResult {
  double average_loss = 0;
  int64_t correct = 0, samples = 0;
};

/// Over all ranks, each image counted once. Collective.
TestResult test(Model& model, Share& share, const frame::PrecisionFlags& precision);

}  // namespace mnist
