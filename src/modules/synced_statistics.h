#pragma once
/// \file
/// Interception of LibTorch's batch norm modules, so that they normalise over several ranks.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "modules/synced_batch_norm.h"

namespace fsdp::modules {

/// Note [Batch norms that nobody edits]. A user's forward calls a BatchNorm2d that is a member of the user's class, and
/// the library cannot replace that member. The dispatcher, however, sees the tensors that the module passes to
/// torch::batch_norm. The library therefore adds a dispatch key to the module's running mean and registers a kernel of
/// torch::batch_norm for this key; all other operators fall through the key at no cost. A module without running
/// statistics gets a substitute tensor in `running_mean` that is not registered as a buffer. The SyncGroup is attached
/// to the tensor as an autograd hook, because hooks stay when the module is moved to another device or dtype.

/// Makes torch::batch_norm with `running_mean` normalise over the ranks of `group` when `module` calls it in training.
/// Evaluation does not change: it uses the running statistics or, without them, the statistics of this rank's batch, as
/// PyTorch's SyncBatchNorm does.
void sync_statistics(const at::Tensor& running_mean, std::weak_ptr<torch::nn::Module> module, SyncGroup group);

}  // namespace fsdp::modules
