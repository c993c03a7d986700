#pragma once
/// \file
/// The parameter sizes of published language models, and small models with the same number of groups.

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "layout/planes.h"

namespace bench {

/// A Llama that is sharded as one group for each block and one group for all other parameters.
struct Llama {
  std::string name;
  int64_t layers, dim, keys, hidden, vocab;

  std::vector<fsdp::layout::Item> block() const;
  /// Returns the sizes of the embedding, the last norm and the head.
  std::vector<fsdp::layout::Item> root() const;
};

/// Returns Llama 3 with 8 and with 70 billion parameters.
std::vector<Llama> llamas();

/// A block with as many parameters as a Llama's block; each parameter has only a few elements.
struct StandInBlockImpl : torch::nn::Module {
  StandInBlockImpl();
  at::Tensor forward(at::Tensor x);

 private:
  std::vector<at::Tensor> norms_, matrices_;
};
TORCH_MODULE(StandInBlock);

struct StandInImpl : torch::nn::Module {
  explicit StandInImpl(int64_t layers);
  /// Returns the loss of a fixed input.
  at::Tensor forward();

 private:
  at::Tensor embedding_, norm_, head_;
  std::vector<StandInBlock> blocks_;
};
TORCH_MODULE(StandIn);

}  // namespace bench
