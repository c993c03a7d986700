#pragma once
/// \file
/// Loads the images of a run.

#include "images/images.h"

#include "arguments.h"

namespace mnist {

struct Parts {
  images::Images train, test;
};

/// Returns the images of MNIST, or digits that are drawn from the seed. Throws fsdp::Error if a file is missing or
/// wrong.
Parts load_images(const Arguments& arguments);

/// Returns the images, normalised as in PyTorch's tutorials. They are in pinned memory if `device` is a GPU.
images::ImageDataset normalised(const images::Images& images, c10::Device device);

}  // namespace mnist
