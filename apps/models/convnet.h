#pragma once
/// \file
/// The network of PyTorch's MNIST example, with the same module names. It contains nothing about sharding.

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "models/classifier.h"
#include "models/run_part.h"

namespace models {

/// A network of two convolutions, max-pooling and two linear layers. It has 1,199,882 parameters, of which fc1 has
/// 1,179,776.
class ConvNet : public Classifier {
 public:
  explicit ConvNet(bool drops_out = true);
  torch::Tensor forward(torch::Tensor images) override;

  torch::nn::Conv2d conv1, conv2;
  torch::nn::Dropout dropout1, dropout2;
  torch::nn::Linear fc1, fc2;
  /// Runs the convolutions, whose activations are the largest of this model.
  RunPart run_convolutions;

 private:
  torch::Tensor convolutions(const torch::Tensor& images);
};

}  // namespace models
