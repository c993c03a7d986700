#pragma once
/// \file
/// Published language models, by the sizes of their parameters, and small ones with as many groups in their place.

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "layout/planes.h"

namespace bench {

/// A Llama: a group for each block, and one for the rest.
struct Llama {
  std::string name;
  int64_t layers, dim, keys, hidden, vocab;

  std::vector<fsdp::layout::Item> block() const;
  /// The embedding, the last norm and the head.
  std::vector<fsdp::layout::Item> root() const;
};

/// Llama 3 of 8 and of 70 billion parameters.
std::vector<Llama> llamas();

/// As many parameters as a Llama's block, of a few elements each.
struct StandInBlockImpl : torch::nn::Module {
  StandInBlockImpl();
  at::Tensor forward(at::Tensor x);

 private:
  std::vector<at::Tensor> norms_, matrices_;
};
TORCH_MODULE(StandInBlock);

struct StandInImpl : torch::nn::Module {
  explicit StandInImpl(int64_t layers);
  /// The loss of a fixed input.
  at::Tensor forward();

 private:
  at::Tensor embedding_, norm_, head_;
  std::vector<StandInBlock> blocks_;
};
TORCH_MODULE(StandIn);

}  // namespace bench
