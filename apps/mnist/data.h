#pragma once
/// \file
/// The images of a run.

#include <fsdp/images.h>

#include "arguments.h"

namespace mnist {

struct Parts {
  fsdp::data::Images train, test;
};

/// MNIST, or digits drawn from the seed. Throws fsdp::Error for files that are missing or wrong.
Parts load_images(const Arguments& arguments);

/// Normalised as the tutorials do, in pinned memory if they go to `device` from there.
fsdp::data::ImageDataset normalised(const fsdp::data::Images& images, c10::Device device);

}  // namespace mnist
