#pragma once
/// \file
/// Combination of sums over this rank's rows to sums over all rows, on every rank.

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <vector>

#include "optim/exact_sum.h"
#include "runtime/param_group.h"

namespace fsdp::optim {

/// This rank's rows of a tensor, contiguous in memory.
struct RowValues {
  at::Tensor values;
  int64_t row_numel = 1;
};

/// The ranks whose rows are summed: those of the shard axis of `group` (replicas have equal rows), and those of the
/// tensor axis; or only those of the pipe axis, which have the other stages. Null means that there is no such axis;
/// without any of them every rank has all rows.
struct SummedRanks {
  const runtime::ParamGroup* group = nullptr;
  const ProcessGroup* tensor_axis = nullptr;
  const ProcessGroup* pipe_axis = nullptr;

  /// Whether this rank counts parameters that are not split over the tensor axis.
  bool counts_uncut() const { return tensor_axis == nullptr || tensor_axis->rank() == 0; }
};

/// Rows of the groups that are sharded over one axis, or of parameters that are not sharded.
struct RowsOnAxis {
  SummedRanks ranks;
  std::vector<RowValues> rows = {};
};

// These functions are collective and called with the rank locked. `subject` names the operation with its arguments, so
// that ranks with different arguments get a Mismatch.
double sum_over_ranks(const SummedRanks& ranks, const SignedExactSum& sum, const std::string& subject);
/// Whether `holds` is true on any rank.
bool any_over_ranks(const SummedRanks& ranks, bool holds, const std::string& subject);
/// Adds the tensors of all ranks element by element, in place, in rank order.
void add_over_ranks(const SummedRanks& ranks, const at::Tensor& values, const std::string& subject);
/// The norm of each tensor: (sum |v|^p)^(1/p), or the largest |v| for infinity.
std::vector<double> norms_over_ranks(const RowsOnAxis& tensors, double p, const std::string& subject);
/// The norm of all tensors together, and of those that other stages of a pipeline have if `stages` has a pipe axis.
double norm_over_ranks(std::span<const RowsOnAxis> axes, double p, const std::string& subject,
                       const SummedRanks& stages = {});

}  // namespace fsdp::optim
