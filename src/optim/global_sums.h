#pragma once
/// \file
/// From sums over this rank's rows to those over all rows, which are on every rank.

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <vector>

#include "optim/exact_sum.h"
#include "runtime/param_group.h"

namespace fsdp::optim {

/// This rank's rows of a tensor, one after another in memory.
struct RowValues {
  at::Tensor values;
  int64_t row_numel = 1;
};

/// Of the groups that are sharded over the ranks of one axis, one of which is `group`.
struct RowsOnAxis {
  const runtime::ParamGroup* group;
  std::vector<RowValues> rows = {};
};

// Over the shard axis of `group`, since replicas have the same rows; null: every rank has all of them, and nothing is
// exchanged. Collective; under the rank's lock. `subject`: the operation with its arguments, in which ranks could
// differ unseen.
double sum_over_ranks(const runtime::ParamGroup* group, const SignedExactSum& sum, const std::string& subject);
/// Whether it holds on one rank.
bool any_over_ranks(const runtime::ParamGroup* group, bool holds, const std::string& subject);
/// Adds element by element, in place, in rank order.
void add_over_ranks(const runtime::ParamGroup* group, const at::Tensor& values, const std::string& subject);
/// (sum |v|^p)^(1/p), the largest |v| for infinity, of each of some tensors.
std::vector<double> norms_over_ranks(const RowsOnAxis& tensors, double p, const std::string& subject);
/// The same of all of them together.
double norm_over_ranks(std::span<const RowsOnAxis> axes, double p, const std::string& subject);

}  // namespace fsdp::optim
