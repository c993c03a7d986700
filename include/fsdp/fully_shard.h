#pragma once
/// \file
/// `fully_shard`, which shards an ordinary module.

#include <fsdp/error.h>
#include <fsdp/options.h>
#include <fsdp/sharded.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <memory>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup sharding
/// \{

/// Puts the parameters under `module` that no earlier call has taken into one group. Each rank keeps its rows of these
/// parameters.
///
/// Call this function bottom-up (blocks first, then the model), or once with `options.auto_wrap_policy`. The module
/// keeps its parameter tensors; outside scopes they show this rank's rows of dim 0, and inside scopes the whole values.
/// Parameters may have any sizes and dtypes and may be on the CPU or a CUDA device. Buffers are not sharded.
///
/// Collective: every rank must make the same calls in the same order, from one thread, with the same options and equal
/// parameter values; otherwise it gets a Mismatch. Ranks compare checksums of the values; with
/// FullyShardOptions::sync_module_states rank 0 broadcasts its values instead. Throws UsageError for contradictory
/// options; for modules that are already sharded, frozen, or without parameters; and for parameters that are not
/// leaves, have gradients, belong to a recorded graph, share memory with another tensor of the module, or have rows
/// with gaps in memory (docs/refused.md has the complete list). A call that throws leaves the module unchanged.
/// fully_shard does not find tensors that are not registered with a module, such as those of layers in a std::vector;
/// each rank then trains its own copy of them, and the library gives no warning. Tensors outside the module that share
/// a parameter's memory, such as the result of an earlier detach(), lose that memory; using them throws an error that
/// says so.
///
///     for (auto& block : *gpt->blocks) fsdp::fully_shard(*block);
///     auto model = fsdp::fully_shard(gpt);
Group fully_shard(torch::nn::Module& module, const FullyShardOptions& options = {});

/// Puts the parameters of several modules, such as a norm and a head that are used together, into one group. Throws
/// UsageError for an empty list.
///
///     fsdp::fully_shard({gpt->norm.get(), gpt->head.get()});
Group fully_shard(const std::vector<torch::nn::Module*>& modules, const FullyShardOptions& options = {});

/// Shards a TorchScript module; shard its submodules first if they are to be groups of their own. Throws UsageError for
/// a frozen module.
///
///     auto script = torch::jit::load("model.pt");
///     auto model = fsdp::fully_shard(script);
Sharded<torch::jit::Module> fully_shard(torch::jit::Module& module, const FullyShardOptions& options = {});

/// Shards the module in a holder such as `GPT`. The returned handle can be called and shares ownership of the module.
/// In all other respects this overload and the following ones behave like the first one.
template <class Impl>
auto fully_shard(torch::nn::ModuleHolder<Impl> module, const FullyShardOptions& options = {}) {
  Group group = fully_shard(static_cast<torch::nn::Module&>(*module), options);
  return Sharded<torch::nn::ModuleHolder<Impl>>(std::move(module), std::move(group));
}

/// Shards the module in a holder type that TORCH_MODULE made.
template <class Holder>
  requires std::derived_from<Holder, torch::nn::ModuleHolder<typename Holder::ContainedType>> &&
           (!std::same_as<Holder, torch::nn::ModuleHolder<typename Holder::ContainedType>>)
Sharded<Holder> fully_shard(Holder module, const FullyShardOptions& options = {}) {
  Group group = fully_shard(static_cast<torch::nn::Module&>(*module), options);
  return Sharded<Holder>(std::move(module), std::move(group));
}

/// Shards a module that a shared pointer owns.
template <std::derived_from<torch::nn::Module> M>
Sharded<std::shared_ptr<M>> fully_shard(std::shared_ptr<M> module, const FullyShardOptions& options = {}) {
  if (!module) throw UsageError("fsdp::fully_shard: expected a module, found a null pointer. Make the module first");
  Group group = fully_shard(static_cast<torch::nn::Module&>(*module), options);
  return Sharded<std::shared_ptr<M>>(std::move(module), std::move(group));
}

/// Shards a module object (`Net net;`). The handle refers to the module, which must outlive the handle.
template <std::derived_from<torch::nn::Module> M>
  requires(!std::same_as<M, torch::nn::Module>)
Sharded<M&> fully_shard(M& module, const FullyShardOptions& options = {}) {
  Group group = fully_shard(static_cast<torch::nn::Module&>(module), options);
  return Sharded<M&>(module, std::move(group));
}

/// Returns the group that `fully_shard` made for this module. Not collective. Any thread may call this function. Throws
/// UsageError if there is no such group.
///
///     fsdp::group_of(*gpt->blocks[0]).unshard().wait();
[[nodiscard]] Group group_of(const torch::nn::Module& module);

/// Returns a callable handle of a module that is already sharded, for code that has only the module, such as a training
/// function. The handle refers to the module, which must outlive the handle. Not collective. Any thread may call this
/// function. Throws UsageError if the module is not sharded.
///
///     void train(Net& net, Loader& loader) {
///       auto model = fsdp::handle_of(net);
///       for (auto& batch : loader) loss(model(batch.data), batch.target).backward();
template <std::derived_from<torch::nn::Module> M>
  requires(!std::same_as<M, torch::nn::Module>)
[[nodiscard]] Sharded<M&> handle_of(M& module) {
  return Sharded<M&>(module, group_of(module));
}

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
