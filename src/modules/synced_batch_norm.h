#pragma once
/// \file
/// Forward and backward of batch normalisation over a batch that is split over ranks.

#include <ATen/core/Tensor.h>
#include <fsdp/process_group.h>

#include <memory>
#include <string>

namespace fsdp::runtime {
class RankState;
}

namespace fsdp::modules {

/// The ranks over which the batch norms of one module tree share statistics.
struct SyncGroup {
  std::shared_ptr<ProcessGroup> process_group;
  /// A separate communicator, because batch norms run in the order of the autograd graph, which is the same on all
  /// ranks.
  std::shared_ptr<Communicator> communicator;
  /// The module's path, for error messages and fingerprints.
  std::string name;
  /// Knows whether this rank has data (fsdp::join).
  std::shared_ptr<runtime::RankState> rank;
};

/// All batch norms over `ranks` share one communicator, which the first call creates. That call is collective.
SyncGroup sync_group_of(const std::shared_ptr<ProcessGroup>& ranks, const std::string& name);

/// Operands of torch::batch_norm in training; missing tensors are undefined.
struct NormOperands {
  at::Tensor input, weight, bias;
  at::Tensor running_mean, running_var;
  double momentum = 0;
  double eps = 0;
};

/// Normalises the input by the mean and variance of the joined batch and updates the running statistics. A rank without
/// data (fsdp::join) does not contribute. Collective; backward is collective too if the input requires a gradient.
///
/// Gradients of weight and bias cover this rank's batch; the reduction of gradients sums them. The input's gradient is
/// that of the joined batch and uses the sums of output gradients over all ranks (S. Ioffe and C. Szegedy, Batch
/// Normalization, 2015, section 3, with m the number of values on all ranks). There is no second derivative.
at::Tensor synced_batch_norm(const NormOperands& operands, const SyncGroup& group);

}  // namespace fsdp::modules
