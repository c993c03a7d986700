#pragma once
/// \file
/// Division of an optimizer's gradients by the loss scale, with a check for inf and NaN.

#include <fsdp/process_group.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>

namespace fsdp::amp {

/// Returns the prefix of an error message of `operation`. It names the rank if any parameter is sharded.
std::string where_of(const torch::optim::Optimizer& optimizer, const std::string& operation);

/// Arguments of unscale on one rank.
struct Question {
  /// Name of the operation for error messages.
  std::string operation;
  /// Loss scale. If it differs between ranks, every rank throws Mismatch.
  double scale = 1;
  /// True if gradients are multiplied by 1 / scale in place. Otherwise they are only checked.
  bool divides = false;
  /// True if this rank has scaled a loss. It can be false on a rank without data. If no rank has scaled a loss, no
  /// gradients are multiplied.
  bool has_scaled = false;
  /// Ranks that take part in addition to those of the sharded parameters; null if there are none.
  std::shared_ptr<const ProcessGroup> ranks = nullptr;
};

/// Result of unscale, which is the same on every rank.
struct Answer {
  /// True if any rank has scaled a loss.
  bool has_scaled = false;
  /// Tensor of 0 dims in fp32, on the gradients' device. It is greater than 0 if a gradient of any rank was not finite.
  /// Undefined if no rank has a gradient.
  at::Tensor found_inf = {};
};

/// Checks the gradients of all ranks, and multiplies them if `question.divides` is true. Waits for other ranks. The
/// host waits for the device only on a rank that has no gradient or has not scaled a loss.
///
/// Collective over the ranks of the sharded parameters and of `question.ranks`, even for ranks without gradients.
/// Throws UsageError, before anything is changed, if a scope or a backward of one of the groups is open, and while
/// gradients wait for their reduction.
Answer unscale(const torch::optim::Optimizer& optimizer, const Question& question);

}  // namespace fsdp::amp
