#pragma once
/// \file
/// Initialisation of parameters that are already sharded.

#include <fsdp/group.h>

#include <functional>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup values
/// \{

/// Runs `init` with the whole parameters of `model` and keeps this rank's rows of the values that `init` writes. The
/// values have the same bits as if `init` had run before fully_shard, for any number of ranks. Writes are recorded and
/// replayed as in deferred_init, so a rank holds at most one whole parameter. In `init` the parameters are on the meta
/// device with their whole sizes, which initialisers such as torch::nn::init::xavier_uniform_ need; outside this
/// function, an initialiser would see only this rank's rows. Parameters that `init` does not write keep their values.
/// `init` writes buffers immediately. It cannot run a forward.
///
/// Collective. Call this function outside scopes and backwards. Every rank must run the same code with generators in
/// the same state; otherwise the function throws Mismatch. Throws UsageError if a parameter is on the meta device (call
/// fsdp::to_empty first) and if `init` calls set_data on a parameter instead of writing in place. If `init` throws,
/// parameters keep their values.
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
