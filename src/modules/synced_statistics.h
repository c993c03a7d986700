#pragma once
/// \file
/// Interception of unmodified batch norms, so that they normalise over several ranks.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "modules/synced_batch_norm.h"

namespace fsdp::modules {

/// Note [Batch norms that nobody edits]. A user's forward calls a BatchNorm2d that is a member of the user's class, and
/// that member cannot be replaced from outside. The dispatcher, however, sees the tensors that the module passes. So
/// the module's running mean carries a dispatch key, for which torch::batch_norm has a kernel here; all other operators
/// fall through the key at no cost. A module without running statistics gets a substitute tensor that only its forward
/// sees, so its list of buffers does not change. The process group is attached to the tensor as an autograd hook,
/// because hooks survive moving the module to another device or dtype.
///
/// Makes torch::batch_norm with `running_mean`, called by `module` in training, normalise over the ranks of `group`.
/// Evaluation is unchanged: it uses running statistics or, without them, those of this rank's batch, like PyTorch's
/// SyncBatchNorm.
void sync_statistics(const at::Tensor& running_mean, std::weak_ptr<torch::nn::Module> module, SyncGroup group);

}  // namespace fsdp::modules
