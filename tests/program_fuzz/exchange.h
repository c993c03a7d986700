#pragma once
/// \file
/// What a rank gives to a kMap or kAttend, and what it makes of the result, sharded or not.

#include <torch/torch.h>

#include <vector>

#include "program_fuzz/program.h"

namespace fsdp::test::fuzz {

struct Exchange {
  int64_t ranks, rank;  // of the axis
  const Statement& statement;

  /// Of h, of sizes [samples, width]: for a kMap a part of these sizes for each rank where the collective cuts what it
  /// gets, for a kAttend queries of sizes [1, ranks, 2 * samples, width].
  torch::Tensor given(const torch::Tensor& h) const {
    if (statement.kind == Kind::kMap) return cuts() ? torch::cat(weighted(h)) : h;
    return torch::stack(weighted(torch::cat({h, 0.5 * h}))).unsqueeze(0);
  }
  /// The next h, of the sizes of the first one; its numbers stay as small.
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
  // In the order of the maps: all_reduce, all_gather, reduce_scatter, all_to_all, shift.
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
