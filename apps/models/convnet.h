#pragma once
/// \file
/// The network of PyTorch's MNIST example, with its names of modules. Nothing in it is about sharding.

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "models/classifier.h"
#include "models/run_part.h"

namespace models {

/// Two convolutions, max-pooling and two linear layers: 1,199,882 parameters, of which fc1 has 1,179,776.
class ConvNet : public Classifier {
 public:
  explicit ConvNet(bool drops_out = true);
  torch::Tensor forward(torch::Tensor images) override;

  torch::nn::Conv2d conv1, conv2;
  torch::nn::Dropout dropout1, dropout2;
  torch::nn::Linear fc1, fc2;
  /// How the convolutions are run, whose results are the largest.
  RunPart run_convolutions;

 private:
  torch::Tensor convolutions(const torch::Tensor& images);
};

}  // namespace models
