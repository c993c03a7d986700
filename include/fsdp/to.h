#pragma once
/// \file
/// Conversion of sharded models to other devices and dtypes, and memory for models on the meta device.

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <fsdp/group.h>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup values
/// \{

/// Allocates memory on `device` for tensors on the meta device: this rank's rows of the parameters under `model`, and
/// whole buffers and ignored parameters. This memory is zero until the program initialises (initialize.h) or loads
/// (checkpoint.h) the tensors. Tensors that have values keep them. Parameters stay the same tensors, so the optimizer
/// may already exist. A device without an index means this thread's current device.
///
/// Collective. Call this function from one thread. Throws UsageError in a scope or a backward, and c10::Error if memory
/// runs out; some groups may then have memory, and you may repeat the call.
///
///     auto gpt = fsdp::meta_init([&] { return GPT(config); });
///     for (auto& block : *gpt->blocks) fsdp::fully_shard(*block);
///     auto model = fsdp::fully_shard(gpt);
///     fsdp::to_empty(model, torch::kCPU);
///     fsdp::initialize(model, [&] { gpt->init_weights(); });
void to_empty(const Group& model, c10::Device device);

/// Moves a sharded model, i.e. this rank's rows, the buffers and the ignored parameters, to another device, like
/// Module::to. Parameters stay the same tensors. During the call a rank holds the rows of one group twice and, if the
/// layout of rows changes, that group whole.
///
/// The state of an optimizer is not converted, so make the optimizer afterwards. Collective. Call this function from
/// one thread. Throws UsageError in a scope or a backward, and while parameters have gradients (zero_grad() drops
/// them). Throws c10::Error if memory runs out, as to_empty does.
///
///     fsdp::to(model, torch::kBFloat16);
void to(const Group& model, c10::Device device);
/// Converts the floating-point tensors of a sharded model to another dtype, under the same rules. Throws UsageError
/// also for a dtype that is not floating point.
void to(const Group& model, c10::ScalarType dtype);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
