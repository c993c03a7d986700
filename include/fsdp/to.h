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
/// whole buffers and ignored parameters. They are zero until they are initialised (initialize.h) or loaded
/// (checkpoint.h); tensors that have values keep them. Parameters stay the same tensors, so the optimizer may already
/// exist. A device without an index means this thread's current one.
///
/// Collective. One thread. Throws UsageError in a scope or a backward, and c10::Error if memory runs out; some groups
/// may then have theirs, and the call can be repeated.
///
///     auto gpt = fsdp::meta_init([&] { return GPT(config); });
///     for (auto& block : *gpt->blocks) fsdp::fully_shard(*block);
///     auto model = fsdp::fully_shard(gpt);
///     fsdp::to_empty(model, torch::kCPU);
///     fsdp::initialize(model, [&] { gpt->init_weights(); });
void to_empty(const Group& model, c10::Device device);

/// Moves a sharded model to another device, or converts its floating-point tensors to another dtype, like Module::to:
/// rows of parameters, buffers and ignored parameters. Parameters stay the same tensors. During the call a rank holds
/// the rows of one group twice and, if the layout of rows changes, that group whole.
///
/// An optimizer's state is not converted, so make the optimizer afterwards. Collective. One thread. Throws UsageError
/// in a scope or a backward, while parameters have gradients (zero_grad() drops them), and for a dtype that is not
/// floating point. Otherwise like to_empty.
///
///     fsdp::to(model, torch::kBFloat16);
void to(const Group& model, c10::Device device);
/// Converts floating-point tensors to another dtype.
void to(const Group& model, c10::ScalarType dtype);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
