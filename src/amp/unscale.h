#pragma once
/// \file
/// The gradients of an optimizer's parameters: divided by the scale, and searched for what is not finite.

#include <torch/optim/optimizer.h>

#include <optional>
#include <string>

namespace fsdp::amp {

/// How an error of `operation` begins: with the rank, if some parameter is sharded.
std::string where_of(const torch::optim::Optimizer& optimizer, const std::string& operation);

/// Multiplies them by `factor` in place; without one they are only read. Returns a number on their device that is above
/// 0 if one was not finite on any rank; undefined, and nothing is communicated, if there is no gradient: of sharded
/// parameters all ranks have one or none has. Waits for other ranks, and not for the device.
///
/// Collective. Throws UsageError, before anything is changed, in a scope or backward of one of the groups and while
/// gradients wait for their reduction.
at::Tensor unscale(const torch::optim::Optimizer& optimizer, std::optional<float> factor, const std::string& operation);

}  // namespace fsdp::amp
