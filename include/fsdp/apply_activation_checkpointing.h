#pragma once
/// \file
/// Activation checkpointing of a model's parts by their types, without a change of the model.

#include <fsdp/activation_checkpoint.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup memory
/// \{

namespace detail {

/// What a Sequential calls of `root` and below, where `is_meant` holds. Throws UsageError where it holds for a module
/// that something else calls, or for none.
std::vector<torch::nn::AnyModule*> called_by_sequentials(torch::nn::Module& root,
                                                         const std::function<bool(const torch::nn::Module&)>& is_meant);
/// From here on `child` is called through `holder`, which has the same module.
void replace_holder(torch::nn::AnyModule& child, std::unique_ptr<torch::nn::AnyModulePlaceholder> holder);

/// Arguments on their way through a Sequential.
struct AnyArguments {
  std::vector<torch::nn::AnyValue> values;
};
template <class Visit>
void visit_tensors(AnyArguments& arguments, const Visit& visit) {
  for (auto& value : arguments.values) {
    if (auto* tensor = value.template try_get<at::Tensor>()) visit(*tensor);
    if (auto* list = value.template try_get<std::vector<at::Tensor>>()) visit(*list);
  }
}

/// LibTorch's holder of a module, whose forward is computed again in backward. In everything else it is that holder, so
/// `sequential->at<M>(i)`, `ptr`, names, printing and `clone` find the module itself.
template <class M, class... Arguments>
struct CheckpointedHolder final : torch::nn::AnyModuleHolder<M, Arguments...> {
  using Plain = torch::nn::AnyModuleHolder<M, Arguments...>;

  CheckpointedHolder(std::shared_ptr<M> held, CheckpointOptions checkpoint)
      : Plain(std::move(held)), options(std::move(checkpoint)) {}

  struct Call {
    std::shared_ptr<M> held;
    torch::nn::AnyValue operator()(AnyArguments arguments) const {
      return Plain(std::shared_ptr<M>(held)).forward(std::move(arguments.values));
    }
    M* operator->() const { return held.get(); }
  };
  torch::nn::AnyValue forward(std::vector<torch::nn::AnyValue>&& arguments) override {
    return activation_checkpoint(options, Call{this->module}, AnyArguments{std::move(arguments)});
  }
  std::unique_ptr<torch::nn::AnyModulePlaceholder> copy() const override {
    return std::make_unique<CheckpointedHolder>(*this);
  }
  std::unique_ptr<torch::nn::AnyModulePlaceholder> clone_module(std::optional<at::Device> device) const override {
    return std::make_unique<CheckpointedHolder>(std::dynamic_pointer_cast<M>(this->module->clone(device)), options);
  }

  CheckpointOptions options;
};

template <class M, class Result, class Class, class... Arguments>
std::unique_ptr<torch::nn::AnyModulePlaceholder> checkpointed_holder(const std::shared_ptr<M>& module,
                                                                     const CheckpointOptions& options,
                                                                     Result (Class::*)(Arguments...)) {
  return std::make_unique<CheckpointedHolder<M, Arguments...>>(module, options);
}

template <class M>
bool checkpoint_if(torch::nn::AnyModule& child, const CheckpointOptions& options) {
  if (child.type_info() != typeid(M)) return false;
  replace_holder(child, checkpointed_holder(child.ptr<M>(), options, &M::forward));
  return true;
}

}  // namespace detail

/// Each module of one of the types that a `torch::nn::Sequential` at or under `root` calls is run by
/// `activation_checkpoint` from here on. The types are those of modules, not of their holders, and exact. Nothing else
/// changes: names, types, parameters, printing and `clone` are as before, so it may come before fully_shard or after
/// it. A second call changes the options. Returns how many modules there are.
///
/// A ModuleList, ModuleDict or member is called by the model's own code, straight and not through a virtual function,
/// so nothing can come between: a module of such a type there is a UsageError that names it, before anything has
/// changed. Write `fsdp::activation_checkpoint(block, x)` where the model calls it. UsageError also if there is none.
/// Not collective; the same on every rank. Not while `root` runs.
///
///     fsdp::apply_activation_checkpointing<BottleneckImpl>(*resnet, {.offload_inputs = true});
template <class... Modules>
int64_t apply_activation_checkpointing(torch::nn::Module& root, const CheckpointOptions& options = {}) {
  const auto children = detail::called_by_sequentials(
      root, [](const torch::nn::Module& module) { return ((typeid(module) == typeid(Modules)) || ...); });
  for (auto* child : children) static_cast<void>((detail::checkpoint_if<Modules>(*child, options) || ...));
  return static_cast<int64_t>(children.size());
}

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
