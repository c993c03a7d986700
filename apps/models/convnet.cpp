#include "models/convnet.h"

#include <torch/torch.h>

namespace models {

ConvNet::ConvNet(bool drops_out)
    : conv1(torch::nn::Conv2dOptions(1, 32, 3)),
      conv2(torch::nn::Conv2dOptions(32, 64, 3)),
      dropout1(drops_out ? 0.25 : 0),
      dropout2(drops_out ? 0.5 : 0),
      fc1(9216, 128),
      fc2(128, 10) {
  register_module("conv1", conv1);
  register_module("conv2", conv2);
  register_module("dropout1", dropout1);
  register_module("dropout2", dropout2);
  register_module("fc1", fc1);
  register_module("fc2", fc2);
}

torch::Tensor ConvNet::convolutions(const torch::Tensor& images) {
  const auto x = torch::relu(conv2(torch::relu(conv1(images))));
  return dropout1(torch::max_pool2d(x, 2)).flatten(1);
}

torch::Tensor ConvNet::forward(torch::Tensor images) {
  auto x = run_part(run_convolutions, [this](const torch::Tensor& h) { return convolutions(h); }, images);
  x = dropout2(torch::relu(fc1(x)));
  return torch::log_softmax(fc2(x), 1);
}

}  // namespace models
