#pragma once
/// \file
/// What the classifiers of images have in common.

#include <torch/nn/module.h>

namespace models {

/// A model that says of images how likely each class is.
class Classifier : public torch::nn::Module {
 public:
  /// `images`: [images, 1, 28, 28]. Returns logarithms of probabilities, [images, 10].
  virtual torch::Tensor forward(torch::Tensor images) = 0;
};

}  // namespace models
