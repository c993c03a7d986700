#pragma once
/// \file
/// Batch normalization of a batch that lies on several ranks, forward and backward.

#include <ATen/core/Tensor.h>
#include <fsdp/process_group.h>

#include <memory>
#include <string>

namespace fsdp::runtime {
class RankState;
}

namespace fsdp::modules {

/// The ranks over which batch norms of one module tree join their statistics.
struct SyncGroup {
  std::shared_ptr<ProcessGroup> process_group;
  /// A communicator of its own, since graphs that are alike on all ranks issue collectives in one order.
  std::shared_ptr<Communicator> communicator;
  /// The module's path, for messages and fingerprints.
  std::string name;
  /// Says whether this rank has data.
  std::shared_ptr<runtime::RankState> rank;
};

/// All batch norms over `ranks` share one communicator. The first call makes it: collective.
SyncGroup sync_group_of(const std::shared_ptr<ProcessGroup>& ranks, const std::string& name);

/// What torch::batch_norm takes, in training; tensors that are not there are undefined.
struct NormOperands {
  at::Tensor input, weight, bias;
  at::Tensor running_mean, running_var;
  double momentum = 0;
  double eps = 0;
};

/// The input normalised by the joined batch's mean and variance, with the running statistics moved on. The input of a
/// rank without data (fsdp::join) is no part of the joined batch. Collective, and so is its backward where the input
/// requires a gradient.
///
/// Gradients of weight and bias are this rank's parts, of which the reduction of gradients makes the sum. That of the
/// input is what the joined batch gives, with the sums of the output's gradients over all ranks (S. Ioffe and C.
/// Szegedy, Batch Normalization, 2015, section 3, with m the values on all ranks). Autograd goes through it once.
at::Tensor synced_batch_norm(const NormOperands& operands, const SyncGroup& group);

}  // namespace fsdp::modules
