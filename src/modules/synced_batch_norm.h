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

/// The ranks over which a batch norm shares its statistics.
struct SyncGroup {
  std::shared_ptr<ProcessGroup> process_group;
  /// Communicator that only batch norms use. Batch norms run in the order of the autograd graph, which is the same on
  /// all ranks. Their order relative to other collectives may differ between ranks.
  std::shared_ptr<Communicator> communicator;
  /// Path of the batch norm in its module tree, which occurs in error messages and in the subjects of collectives.
  std::string name;
  /// State of the rank, which says whether this rank has data (fsdp::join).
  std::shared_ptr<runtime::RankState> rank;
};

/// Returns the SyncGroup of the batch norm `name`. All batch norms over `ranks` share one communicator. The first call
/// creates it and is therefore collective.
SyncGroup sync_group_of(const std::shared_ptr<ProcessGroup>& ranks, const std::string& name);

/// Operands of torch::batch_norm in training. Optional tensors that the caller did not pass are undefined.
struct NormOperands {
  at::Tensor input, weight, bias;
  at::Tensor running_mean, running_var;
  double momentum = 0;
  double eps = 0;
};

/// Returns the input normalised by the mean and variance of the batches of all ranks together, and updates the running
/// statistics. A rank without data (fsdp::join) does not contribute. Collective; backward is collective too if the
/// input requires a gradient.
///
/// The gradients of weight and bias are those of this rank's batch; the reduction of gradients sums them over the
/// ranks. The input's gradient takes into account that the statistics depend on all batches, and uses the sums of
/// output gradients over all ranks (S. Ioffe and C. Szegedy, Batch Normalization, 2015, section 3, where m is the
/// number of values on all ranks). Throws UsageError if there is one value per channel on all ranks together, and if
/// backward is to be differentiable (create_graph).
at::Tensor synced_batch_norm(const NormOperands& operands, const SyncGroup& group);

}  // namespace fsdp::modules
