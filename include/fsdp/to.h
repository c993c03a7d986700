#pragma once
/// \file
/// Other devices and dtypes for a model that is sharded, and the first device of one that has no values yet.

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <fsdp/group.h>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup values
/// \{

/// Gives what is on the meta device memory on `device`: this rank's rows of the parameters under `model`, and buffers
/// and ignored parameters whole. They are zeros until they are initialised (initialize.h) or loaded (checkpoint.h);
/// what has values keeps them. The parameters stay the same tensors, so an optimizer may have been made before.
/// A device without a number is this thread's current one.
///
/// Collective, one thread. Throws UsageError in a scope or a backward, and a c10::Error where there is no such memory,
/// after which some groups may have theirs: it can be called again.
///
///     auto gpt = fsdp::meta_init([&] { return GPT(config); });
///     for (auto& block : *gpt->blocks) fsdp::fully_shard(*block);
///     auto model = fsdp::fully_shard(gpt);
///     fsdp::to_empty(model, torch::kCPU);
///     fsdp::initialize(model, [&] { gpt->init_weights(); });
void to_empty(const Group& model, c10::Device device);

/// Moves a sharded model to another device, or converts what is floating point to another dtype, as Module::to does
/// with one that is not sharded: rows of parameters, buffers and ignored parameters. The parameters stay the same
/// tensors. Meanwhile a rank holds the rows of one group twice and, where the rows are laid out anew, the whole group.
///
/// An optimizer's state stays behind: make the optimizer after it. Collective, one thread. Throws UsageError in a scope
/// or a backward, while parameters have gradients (zero_grad() drops them) and for a dtype that is not floating point;
/// otherwise as to_empty.
///
///     fsdp::to(model, torch::kBFloat16);
void to(const Group& model, c10::Device device);
/// The same to another dtype.
void to(const Group& model, c10::ScalarType dtype);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
