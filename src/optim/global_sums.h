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

// Over the shard axis of `group`, since replicas have the same rows. Collective; under the rank's lock. `subject`: the
// operation with its arguments, in which ranks could differ unseen.

double sum_over_ranks(const runtime::ParamGroup& group, const SignedExactSum& sum, const std::string& subject);
double max_over_ranks(const runtime::ParamGroup& group, double value, const std::string& subject);
/// (sum |v|^p)^(1/p), the largest |v| for infinity.
double norm_over_ranks(std::span<const RowsOnAxis> axes, double p, const std::string& subject);

}  // namespace fsdp::optim
