#pragma once
/// \file
/// Values for parameters that are sharded already.

#include <fsdp/group.h>

#include <functional>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup values
/// \{

/// Runs `init` with the parameters under `model` whole, and keeps this rank's rows of what it writes to them: the same
/// bits as if it had run on the model before fully_shard, with any number of ranks. What it writes is put off as in
/// deferred_init, so no rank holds more than one whole parameter. Meanwhile the parameters are on the meta device and
/// have their whole sizes, by which initialisers such as torch::nn::init::xavier_uniform_ compute; outside, they see
/// rows. Parameters that it does not write keep their values, and buffers are written as usual. No forward runs in it.
///
/// Collective, outside scopes and backwards; each rank runs the same, with generators in the same state (Mismatch
/// otherwise). Throws UsageError for parameters that are on the meta device: fsdp::to_empty comes first; and for
/// set_data on a parameter, whose values are written in place. If `init` throws, parameters have the values that they
/// had.
///
///     fsdp::initialize(model, [&] {
///       model->apply([](torch::nn::Module& module) {
///         if (auto* linear = module.as<torch::nn::Linear>()) torch::nn::init::xavier_uniform_(linear->weight);
///       });
///     });
void initialize(const Group& model, const std::function<void()>& init);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
