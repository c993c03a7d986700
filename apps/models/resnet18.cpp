#include "models/resnet18.h"

#include <torch/torch.h>

namespace models {
namespace {

torch::nn::Conv2d convolution(int64_t in_channels, int64_t channels, int64_t size, int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in_channels, channels, size).stride(stride).padding(size / 2).bias(false));
}

torch::nn::Sequential layer(int64_t in_channels, int64_t channels, int64_t stride) {
  return torch::nn::Sequential(BasicBlock(in_channels, channels, stride), BasicBlock(channels, channels, 1));
}

}  // namespace

BasicBlockImpl::BasicBlockImpl(int64_t in_channels, int64_t channels, int64_t stride)
    : conv1(convolution(in_channels, channels, 3, stride)),
      bn1(channels),
      conv2(convolution(channels, channels, 3, 1)),
      bn2(channels) {
  register_module("conv1", conv1);
  register_module("bn1", bn1);
  register_module("conv2", conv2);
  register_module("bn2", bn2);
  if (stride == 1 && in_channels == channels) return;
  downsample = register_module("downsample", torch::nn::Sequential(convolution(in_channels, channels, 1, stride),
                                                                   torch::nn::BatchNorm2d(channels)));
}

torch::Tensor BasicBlockImpl::forward(const torch::Tensor& x) {
  const auto skipped = downsample.is_empty() ? x : downsample->forward(x);
  return torch::relu(bn2(conv2(torch::relu(bn1(conv1(x))))) + skipped);
}

ResNet18::ResNet18()
    : conv1(convolution(1, 64, 7, 2)),
      bn1(64),
      layer1(layer(64, 64, 1)),
      layer2(layer(64, 128, 2)),
      layer3(layer(128, 256, 2)),
      layer4(layer(256, 512, 2)),
      fc(512, 10) {
  register_module("conv1", conv1);
  register_module("bn1", bn1);
  register_module("layer1", layer1);
  register_module("layer2", layer2);
  register_module("layer3", layer3);
  register_module("layer4", layer4);
  register_module("fc", fc);
  for (const auto& module : modules(/*include_self=*/false))
    if (auto* conv = module->as<torch::nn::Conv2d>())
      torch::nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
}

torch::Tensor ResNet18::forward(torch::Tensor images) {
  auto x = torch::max_pool2d(torch::relu(bn1(conv1(images))), 3, 2, 1);
  x = layer4->forward(layer3->forward(layer2->forward(layer1->forward(x))));
  return torch::log_softmax(fc(torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1)), 1);
}

}  // namespace models
