#pragma once
/// \file
/// Loads the images of a run.

#include <fsdp/images.h>

#include "arguments.h"

namespace mnist {

struct Parts {
  fsdp::data::Images train, test;
};

/// Returns the images of MNIST, or digits that are drawn from the seed. Throws fsdp::Error if a file is missing or
/// wrong.
Parts load_images(const Arguments& arguments);

/// Returns the images, normalised as in PyTorch's tutorials. They are in pinned memory if `device` is a GPU.
fsdp::data::ImageDataset normalised(const fsdp::data::Images& images, c10::Device device);

}  // namespace mnist
