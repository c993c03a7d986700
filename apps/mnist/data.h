#pragma once
/// \file
/// The images of a run.

#include "images/images.h"

#include "arguments.h"

namespace mnist {

struct Parts {
  images::Images train, test;
};

/// MNIST, or digits drawn from the seed. Throws fsdp::Error for files that are missing or wrong.
Parts load_images(const Arguments& arguments);

/// Normalised as the tutorials do, in pinned memory if they go to `device` from there.
images::ImageDataset normalised(const images::Images& images, c10::Device device);

}  // namespace mnist
