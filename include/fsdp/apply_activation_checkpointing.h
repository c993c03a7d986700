#pragma once
/// \file
/// Activation checkpointing of a model's modules, selected by type, without changing the model's code.

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

/// Returns the entries of Sequentials at or under `root` whose modules satisfy `is_meant`. Throws UsageError if
/// `is_meant` holds for a module that is not an entry of a Sequential, or for no module.
std::vector<torch::nn::AnyModule*> called_by_sequentials(torch::nn::Module& root,
                                                         const std::function<bool(const torch::nn::Module&)>& is_meant);
/// Makes `child` call its module through `holder`. The holder must hold the same module.
void replace_holder(torch::nn::AnyModule& child, std::unique_ptr<torch::nn::AnyModulePlaceholder> holder);

/// Arguments of a call that a Sequential makes.
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

/// LibTorch's holder of a module, except that `forward` is checkpointed. `sequential->at<M>(i)`, `ptr`, names, printing
/// and `clone` work as before.
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

/// Makes each `torch::nn::Sequential` at or under `root` call those of its modules that have one of the given types
/// through `activation_checkpoint`. Give the exact types of the modules (`BlockImpl`), not of their holders. Names,
/// types, parameters, printing and `clone` do not change, so you may call this function before or after fully_shard. A
/// second call replaces the options. Returns the number of modules that are now checkpointed.
///
/// The model's own code calls modules in a ModuleList, a ModuleDict or a data member, and this function cannot
/// intercept such calls. If such a module has one of the types, it throws UsageError, which names the module. It also
/// throws UsageError if no module has one of the types. The model is then unchanged. Write
/// `fsdp::activation_checkpoint(block, x)` where the model calls such a module. Not collective, but every rank must
/// make the same call. Do not call this function while `root` runs.
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
