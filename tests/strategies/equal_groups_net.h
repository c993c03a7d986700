#pragma once
/// \file
/// A net whose groups are all equal and divide evenly, so that formulas give its costs.

#include <fsdp/fsdp.h>

#include "support/oracle.h"

namespace fsdp::test {

struct EqualGroupsNetImpl : torch::nn::Module {
  static constexpr int64_t kWidth = 32, kLayers = 4;
  /// Each layer is a param group, and the root's group has the head.
  static constexpr int64_t kGroups = kLayers + 1, kGroupBytes = kWidth * kWidth * 4, kAllBytes = kGroups * kGroupBytes;

  torch::nn::Sequential layers;
  torch::nn::Linear head{plain()};
  EqualGroupsNetImpl() {
    for (int64_t i = 0; i < kLayers; ++i) layers->push_back(torch::nn::Linear(plain()));
    register_module("layers", layers);
    register_module("head", head);
  }
  static torch::nn::LinearOptions plain() { return torch::nn::LinearOptions(kWidth, kWidth).bias(false); }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : *layers) x = torch::tanh(layer.forward(x));
    return head->forward(x);
  }
};

inline void forward_and_backward(const Group& group, EqualGroupsNetImpl& net) {
  torch::Tensor loss;
  {
    const ForwardScope scope(group);
    loss = net.forward(torch::ones({2, EqualGroupsNetImpl::kWidth})).square().sum();
  }
  loss.backward();
}

}  // namespace fsdp::test
