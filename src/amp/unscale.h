#pragma once
/// \file
/// The gradients of an optimizer's parameters: divided by the scale, and searched for what is not finite.

#include <fsdp/process_group.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>

namespace fsdp::amp {

/// How an error of `operation` begins: with the rank, if some parameter is sharded.
std::string where_of(const torch::optim::Optimizer& optimizer, const std::string& operation);

/// What a rank asks.
struct Question {
  std::string operation;
  /// By which losses were multiplied. Ranks that have another one get a Mismatch.
  double scale = 1;
  /// Whether gradients are multiplied by 1 / scale in place; otherwise they are only read.
  bool divides = false;
  /// Whether this rank scaled a loss; one that had no data may not have. Nothing is divided if no rank did.
  bool has_scaled = false;
  /// Who is told beside the ranks of the sharded parameters; null: nobody.
  std::shared_ptr<const ProcessGroup> ranks = nullptr;
};

/// The same on every rank.
struct Answer {
  bool has_scaled = false;
  /// On the gradients' device, above 0 if one was not finite; undefined if there is no gradient.
  at::Tensor found_inf = {};
};

/// Waits for other ranks, and not for the device.
///
/// Collective over the ranks of the sharded parameters and `ranks`, whatever gradients a rank has. Throws UsageError,
/// before anything is changed, in a scope or backward of one of the groups and while gradients wait for their
/// reduction.
Answer unscale(const torch::optim::Optimizer& optimizer, const Question& question);

}  // namespace fsdp::amp
