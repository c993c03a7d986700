#pragma once
/// \file
/// Says what a rank passes to the collective of a kMap or kAttend, and how the result becomes the next h. The sharded
/// and the unsharded run share this code.

#include <torch/torch.h>

#include <vector>

#include "program_fuzz/program.h"

namespace fsdp::test::fuzz {

struct Exchange {
  int64_t ranks, rank;  // of the axis
  const Statement& statement;

  /// Returns what the rank passes to the collective, for h of sizes [samples, width]. For a kAttend it has sizes [1,
  /// ranks, 2 * samples, width]. For a kMap it is h itself or, if the collective splits its input between ranks, one
  /// multiple of h for each rank.
  torch::Tensor given(const torch::Tensor& h) const {
    if (statement.kind == Kind::kMap) return cuts() ? torch::cat(weighted(h)) : h;
    return torch::stack(weighted(torch::cat({h, 0.5 * h}))).unsqueeze(0);
  }
  /// Returns the next h, with the sizes of the first one. tanh keeps its numbers small.
  torch::Tensor taken(const torch::Tensor& result) const {
    if (statement.kind == Kind::kAttend) {
      const auto halves = result.mean(1)[0].chunk(2);
      return torch::tanh(halves[0] + 0.3 * halves[1]);
    }
    if (!joins()) return torch::tanh(result);
    auto sum = torch::zeros({}, torch::kDouble);
    int64_t part = 0;
    for (const auto& one : result.chunk(ranks)) sum = sum + one * weight(part++);
    return torch::tanh(sum);
  }

 private:
  // `seed` chooses all_reduce, all_gather, reduce_scatter, all_to_all or shift, in this order.
  bool joins() const { return statement.seed % kMaps == 1 || statement.seed % kMaps == 3; }
  bool cuts() const { return statement.seed % kMaps == 2 || statement.seed % kMaps == 3; }
  double weight(int64_t part) const { return 1 + 0.1 * static_cast<double>(part) - 0.03 * static_cast<double>(rank); }
  std::vector<torch::Tensor> weighted(const torch::Tensor& tensor) const {
    std::vector<torch::Tensor> parts;
    for (int64_t part = 0; part < ranks; ++part) parts.push_back(tensor * weight(part));
    return parts;
  }
};

}  // namespace fsdp::test::fuzz
