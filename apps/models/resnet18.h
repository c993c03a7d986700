#pragma once
/// \file
/// ResNet-18 (He et al., 2015, table 1) for images of one channel and ten classes, with Torchvision's module names.

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "models/classifier.h"

namespace models {

/// Two convolutions, each followed by a batch norm, and a connection that skips both.
class BasicBlockImpl : public torch::nn::Module {
 public:
  BasicBlockImpl(int64_t in_channels, int64_t channels, int64_t stride);
  torch::Tensor forward(const torch::Tensor& x);

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d bn2;
  torch::nn::Sequential downsample{nullptr};  // Null if input and output have one shape.
};
TORCH_MODULE(BasicBlock);

class ResNet18 : public Classifier {
 public:
  ResNet18();
  torch::Tensor forward(torch::Tensor images) override;

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Sequential layer1, layer2, layer3, layer4;
  torch::nn::Linear fc;
};

}  // namespace models
