#pragma once
/// \file
/// Unscaling of an optimizer's gradients, with a check for inf and NaN.

#include <fsdp/process_group.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>

namespace fsdp::amp {

/// The prefix of an error message of `operation`, with the rank if any parameter is sharded.
std::string where_of(const torch::optim::Optimizer& optimizer, const std::string& operation);

/// The arguments of unscale on one rank.
struct Question {
  std::string operation;
  /// The loss scale. Ranks with different scales get a Mismatch.
  double scale = 1;
  /// Whether gradients are multiplied by 1 / scale in place; otherwise they are only checked.
  bool divides = false;
  /// Whether this rank has scaled a loss; a rank without data may not have. If no rank has, gradients are not
  /// multiplied.
  bool has_scaled = false;
  /// Ranks that take part in addition to those of the sharded parameters; null: none.
  std::shared_ptr<const ProcessGroup> ranks = nullptr;
};

/// The result of unscale, which is the same on every rank.
struct Answer {
  bool has_scaled = false;
  /// On the gradients' device: greater than 0 if a gradient was not finite; undefined if there is no gradient.
  at::Tensor found_inf = {};
};

/// Checks the gradients, and multiplies them if `question` says so. Waits for other ranks, but not for the device.
///
/// Collective over the ranks of the sharded parameters and of `ranks`, even for ranks without gradients. Throws
/// UsageError, before anything is changed, in a scope or backward of one of the groups, and while gradients wait for
/// their reduction.
Answer unscale(const torch::optim::Optimizer& optimizer, const Question& question);

}  // namespace fsdp::amp
