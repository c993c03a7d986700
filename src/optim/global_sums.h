#pragma once
/// \file
/// Sums and norms over the rows of all ranks. Every rank gets the result.

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <vector>

#include "optim/exact_sum.h"
#include "runtime/param_group.h"

namespace fsdp::optim {

/// This rank's rows of a tensor, contiguous in memory. A row has `row_numel` elements.
struct RowValues {
  at::Tensor values;
  int64_t row_numel = 1;
};

/// The ranks over which a sum is reduced. If `pipe_axis` is set, they are the ranks of the pipe axis, which have the
/// other stages. Otherwise they are the ranks of the shard axis of `group` (not its replicas, which have equal rows)
/// and the ranks of the tensor axis. A pointer is null if there is no such axis. If all are null, each rank has all
/// rows and nothing is reduced.
struct SummedRanks {
  const runtime::ParamGroup* group = nullptr;
  const ProcessGroup* tensor_axis = nullptr;
  const ProcessGroup* pipe_axis = nullptr;

  /// True if this rank counts parameters that are not split over the tensor axis. Only one rank of the axis does.
  bool counts_uncut() const { return tensor_axis == nullptr || tensor_axis->rank() == 0; }
};

/// This rank's rows of all tensors that are reduced over the same ranks.
struct RowsOnAxis {
  SummedRanks ranks;
  std::vector<RowValues> rows = {};
};

// These functions are collective. If `ranks.group` is set, the caller holds its RankState::mutex. `subject` names the
// operation and its arguments; if it differs between ranks, every rank throws Mismatch.

/// Returns the total of the ranks' sums.
double sum_over_ranks(const SummedRanks& ranks, const SignedExactSum& sum, const std::string& subject);
/// Returns true if `holds` is true on any rank.
bool any_over_ranks(const SummedRanks& ranks, bool holds, const std::string& subject);
/// Replaces `values` by the element-wise sum of the ranks' tensors, which are added in rank order.
void add_over_ranks(const SummedRanks& ranks, const at::Tensor& values, const std::string& subject);
/// Returns the norm of each tensor: (sum |v|^p)^(1/p), or the largest |v| if p is infinity.
std::vector<double> norms_over_ranks(const RowsOnAxis& tensors, double p, const std::string& subject);
/// Returns the norm of all tensors together. If `stages` has a pipe axis, the norm includes the tensors of the other
/// stages.
double norm_over_ranks(std::span<const RowsOnAxis> axes, double p, const std::string& subject,
                       const SummedRanks& stages = {});

}  // namespace fsdp::optim
