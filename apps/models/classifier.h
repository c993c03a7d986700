#pragma once
/// \file
/// Defines the common interface of the image classifiers.

#include <torch/nn/module.h>

namespace models {

/// A model that predicts how likely each class is for an image.
class Classifier : public torch::nn::Module {
 public:
  /// `images` has the shape [images, 1, 28, 28]. Returns log probabilities of the shape [images, 10].
  virtual torch::Tensor forward(torch::Tensor images) = 0;
};

}  // namespace models
