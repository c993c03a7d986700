#pragma once
/// \file
/// What makes an unmodified batch norm one over several ranks.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "modules/synced_batch_norm.h"

namespace fsdp::modules {

/// Note [Batch norms that nobody edits]. A user's forward calls the BatchNorm2d that is a member of his class, and
/// nothing can be put in that member's place from outside. What the module does with its tensors is seen by the
/// dispatcher, though. So its running mean carries a dispatch key of its own: torch::batch_norm, called with it, comes
/// here first, while all other operators pass the key by at no cost. A module without running statistics gets a
/// stand-in, which only its forward sees: its list of buffers stays as it was. On the tensor hangs where the ranks
/// meet, as a hook of autograd's, since hooks stay when a module moves to another device or dtype.
///
/// Makes torch::batch_norm with `running_mean`, as `module` calls it in training, one over the ranks of `group`.
/// Evaluation computes as before: by running statistics, or by those of this rank's batch where there are none, as
/// PyTorch's SyncBatchNorm does.
void sync_statistics(const at::Tensor& running_mean, std::weak_ptr<torch::nn::Module> module, SyncGroup group);

}  // namespace fsdp::modules
