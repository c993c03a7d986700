#pragma once
/// \file
/// `fully_shard`: what turns an ordinary module into a sharded one.

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

/// Makes one group of the parameters under `module` that no earlier call has taken, and keeps this rank's rows of them.
///
/// Call it bottom-up (blocks first, then the model), or once with `options.auto_wrap_policy`. The module stays as it
/// is: its parameters are the same tensors, which show this rank's rows (of dim 0) outside scopes and whole values
/// inside. Any sizes; any dtypes, each in a flat buffer of its own; CPU or CUDA. Buffers are left alone.
///
/// Collective: all ranks, same order, same options, same values of parameters (Mismatch otherwise; values are compared
/// by checksum, or taken from rank 0, see FullyShardOptions::sync_module_states). One thread. Throws UsageError for
/// modules that are sharded already, frozen, or without parameters, for parameters that are not leaves, have gradients,
/// are part of a recorded graph, share memory with another tensor of the module, or lie with rows that are not dense,
/// and for contradicting options; docs/refused.md has all of it. Tensors that train and that no module registered, e.g.
/// those of layers in a std::vector, are each rank's own, which nothing tells. If it throws, the module is as it was
/// before. Tensors outside of the module that share a parameter's memory, e.g. a detach() from before, have none
/// afterwards: using them is an error that says so. A module that no shared pointer owns has to outlive the scopes that
/// are opened on its group.
///
///     for (auto& block : *gpt->blocks) fsdp::fully_shard(*block);
///     auto model = fsdp::fully_shard(gpt);
Group fully_shard(torch::nn::Module& module, const FullyShardOptions& options = {});

/// One group of several modules, e.g. the norm and the head that are used together. Throws UsageError for an empty
/// list.
///
///     fsdp::fully_shard({gpt->norm.get(), gpt->head.get()});
Group fully_shard(const std::vector<torch::nn::Module*>& modules, const FullyShardOptions& options = {});

/// A TorchScript module; submodules first, if they are to be groups. Throws UsageError for a frozen one.
///
///     auto script = torch::jit::load("model.pt");
///     auto model = fsdp::fully_shard(script);
Sharded<torch::jit::Module> fully_shard(torch::jit::Module& module, const FullyShardOptions& options = {});

/// A module holder such as `GPT`; the handle can be called and shares the module. As the first overload otherwise, and
/// so are the following ones.
template <class Impl>
auto fully_shard(torch::nn::ModuleHolder<Impl> module, const FullyShardOptions& options = {}) {
  Group group = fully_shard(static_cast<torch::nn::Module&>(*module), options);
  return Sharded<torch::nn::ModuleHolder<Impl>>(std::move(module), std::move(group));
}

/// A type made by TORCH_MODULE.
template <class Holder>
  requires std::derived_from<Holder, torch::nn::ModuleHolder<typename Holder::ContainedType>> &&
           (!std::same_as<Holder, torch::nn::ModuleHolder<typename Holder::ContainedType>>)
Sharded<Holder> fully_shard(Holder module, const FullyShardOptions& options = {}) {
  Group group = fully_shard(static_cast<torch::nn::Module&>(*module), options);
  return Sharded<Holder>(std::move(module), std::move(group));
}

/// A module behind a shared pointer.
template <std::derived_from<torch::nn::Module> M>
Sharded<std::shared_ptr<M>> fully_shard(std::shared_ptr<M> module, const FullyShardOptions& options = {}) {
  if (!module) throw UsageError("fsdp::fully_shard: expected a module, found a null pointer. Make the module first");
  Group group = fully_shard(static_cast<torch::nn::Module&>(*module), options);
  return Sharded<std::shared_ptr<M>>(std::move(module), std::move(group));
}

/// A concrete module (`Net net;`); the handle refers to it, so the module has to outlive the handle.
template <std::derived_from<torch::nn::Module> M>
  requires(!std::same_as<M, torch::nn::Module>)
Sharded<M&> fully_shard(M& module, const FullyShardOptions& options = {}) {
  Group group = fully_shard(static_cast<torch::nn::Module&>(module), options);
  return Sharded<M&>(module, std::move(group));
}

/// The group that `fully_shard` made of this very module. Not collective; any thread. Throws UsageError if there is
/// none.
///
///     fsdp::group_of(*gpt->blocks[0]).unshard().wait();
[[nodiscard]] Group group_of(const torch::nn::Module& module);

/// A handle that can be called, of a module that is sharded already: for code that has only the module, such as a
/// training function. It refers to the module, which has to outlive it. Not collective; any thread. Throws UsageError
/// as group_of does.
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
