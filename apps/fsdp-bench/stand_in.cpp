#include "stand_in.h"

#include <torch/torch.h>

namespace bench {

namespace {
constexpr int64_t kDim = 4, kVocab = 8;
}  // namespace

std::vector<fsdp::layout::Item> Llama::block() const {
  return {{{dim}}, {{dim, dim}},    {{keys, dim}},   {{keys, dim}},  {{dim, dim}},
          {{dim}}, {{hidden, dim}}, {{hidden, dim}}, {{dim, hidden}}};
}

std::vector<fsdp::layout::Item> Llama::root() const { return {{{vocab, dim}}, {{dim}}, {{vocab, dim}}}; }

std::vector<Llama> llamas() {
  return {{"Llama-3 8B", 32, 4096, 1024, 14336, 128256}, {"Llama-3 70B", 80, 8192, 1024, 28672, 128256}};
}

StandInBlockImpl::StandInBlockImpl() {
  for (int i = 0; i < 2; ++i) norms_.push_back(register_parameter("norm_" + std::to_string(i), torch::ones({kDim})));
  for (int i = 0; i < 7; ++i) matrices_.push_back(register_parameter("matrix_" + std::to_string(i), torch::eye(kDim)));
}

at::Tensor StandInBlockImpl::forward(at::Tensor x) {
  for (const auto& norm : norms_) x = x * norm;
  for (const auto& matrix : matrices_) x = torch::linear(x, matrix);
  return x;
}

StandInImpl::StandInImpl(int64_t layers)
    : embedding_(register_parameter("embedding", torch::ones({kVocab, kDim}))),
      norm_(register_parameter("norm", torch::ones({kDim}))),
      head_(register_parameter("head", torch::ones({kVocab, kDim}))) {
  for (int64_t i = 0; i < layers; ++i) blocks_.push_back(register_module("block_" + std::to_string(i), StandInBlock()));
}

at::Tensor StandInImpl::forward() {
  auto x = torch::embedding(embedding_, torch::arange(kVocab));
  for (auto& block : blocks_) x = block(x);
  return torch::linear(x * norm_, head_).sum();
}

}  // namespace bench
