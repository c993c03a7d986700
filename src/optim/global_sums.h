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

/// Whose rows are summed: those on the shard axis of `group`, since replicas have the same ones, and on the tensor axis
/// beside it, or those of the stages of a pipeline, on its axis alone. Null: there is no such axis; without all of them
/// every rank has all rows.
struct SummedRanks {
  const runtime::ParamGroup* group = nullptr;
  const ProcessGroup* tensor_axis = nullptr;
  const ProcessGroup* pipe_axis = nullptr;

  /// Whether this rank counts a parameter of which every rank of the tensor axis has all.
  bool counts_uncut() const { return tensor_axis == nullptr || tensor_axis->rank() == 0; }
};

/// Of the groups that are sharded over the ranks of one axis, or of parameters that are not sharded.
struct RowsOnAxis {
  SummedRanks ranks;
  std::vector<RowValues> rows = {};
};

// Collective; under the rank's lock. `subject`: the operation with its arguments, in which ranks could differ unseen.
double sum_over_ranks(const SummedRanks& ranks, const SignedExactSum& sum, const std::string& subject);
/// Whether it holds on one rank.
bool any_over_ranks(const SummedRanks& ranks, bool holds, const std::string& subject);
/// Adds element by element, in place, in rank order.
void add_over_ranks(const SummedRanks& ranks, const at::Tensor& values, const std::string& subject);
/// (sum |v|^p)^(1/p), the largest |v| for infinity, of each of some tensors.
std::vector<double> norms_over_ranks(const RowsOnAxis& tensors, double p, const std::string& subject);
/// The same of all of them together, and with those of the other stages of a pipeline, if `stages` has one.
double norm_over_ranks(std::span<const RowsOnAxis> axes, double p, const std::string& subject,
                       const SummedRanks& stages = {});

}  // namespace fsdp::optim
