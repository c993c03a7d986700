#pragma once
/// \file
/// The interceptor for one C++ signature of operators, without the cost of moving arguments to a stack and back.

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/compat.h"
#include "runtime/cpp_types.h"
#include "runtime/interceptor.h"
#include "runtime/operand_access.h"

namespace fsdp::runtime {

/// The kernel of an operator whose C++ function is a `Signature`. Does with its arguments what the interceptor of any
/// operator does.
template <class Signature>
class TypedKernel;

template <class Result, class... Arguments>
class TypedKernel<Result(Arguments...)> {
  static constexpr bool kInPlace = std::is_lvalue_reference_v<Result>;

 public:
  explicit TypedKernel(const c10::OperatorHandle& op)
      : op_(op.typed<Result(Arguments...)>()), traits_(operator_traits(op)) {}

  Result operator()(c10::DispatchKeySet keys, Arguments... arguments) const {
    OperatorCall call{.op = op_, .traits = traits_};
    size_t i = 0;
    (add(call, i++, arguments), ...);
    OperandGroups groups;
    if (!prepare(call, groups)) return on_stack(keys, std::forward<Arguments>(arguments)...);
    Result result = [&]() -> Result {
      const c10::impl::ExcludeDispatchKeyGuard below(kShardedKey);
      return op_.redispatch(keys & kBelowSharded, std::forward<Arguments>(arguments)...);
    }();
    if (!groups.empty()) hook(groups, call, result);
    return result;
  }

  static bool fits(const c10::OperatorHandle& op) {
    const auto& schema = op.schema();
    if (schema.arguments().size() != sizeof...(Arguments)) return false;
    size_t i = 0;
    return Returns<Result>::in(schema) && (is<Arguments>(schema.arguments()[i++]) && ...);
  }

 private:
  // Apart, so that the way without the stack stays short.
  [[gnu::noinline, gnu::cold]] Result on_stack(c10::DispatchKeySet keys, Arguments... arguments) const {
    return c10::KernelFunction::makeFromBoxedFunction<&intercept>().template call<Result, Arguments...>(
        op_, keys, std::forward<Arguments>(arguments)...);
  }

  static void add(OperatorCall& call, size_t i, const at::Tensor& tensor) { call.add(i, tensor); }
  static void add(OperatorCall& call, size_t i, const std::optional<at::Tensor>& tensor) {
    if (tensor) call.add(i, *tensor);
  }
  static void add(OperatorCall& call, size_t i, at::TensorList tensors) {
    for (const at::Tensor& tensor : tensors) call.add(i, tensor);
  }
  static void add(OperatorCall& call, size_t i, const at::ITensorListRef& tensors) {
    for (const at::Tensor& tensor : tensors) call.add(i, tensor);
  }
  static void add(OperatorCall& call, size_t i, const c10::List<std::optional<at::Tensor>>& tensors) {
    for (const auto& element : tensors)
      if (element.get().isTensor()) call.add(i, element.get().toTensor());
  }
  static void add(OperatorCall& call, size_t i, int64_t number) {
    if (call.traits.selecting_argument == i) call.selecting_dim = number;
  }
  template <class Other>
  static void add(OperatorCall&, size_t, const Other&) {}

  static void hook(OperandGroups& groups, const OperatorCall& call, const at::Tensor& result) {
    // What is written without autograd, and an operand that comes back, as of type_as, has a node of another operator.
    const bool has_node_of_another =
        kInPlace
            ? !at::GradMode::is_enabled()
            : std::ranges::any_of(call.tensors, [&](const auto& operand) { return operand.tensor->is_same(result); });
    if (result.defined() && !has_node_of_another) groups.hook(result);
  }
  static void hook(OperandGroups& groups, const OperatorCall& call, const std::vector<at::Tensor>& results) {
    for (const auto& result : results) hook(groups, call, result);
  }
  template <class... Results>
  static void hook(OperandGroups& groups, const OperatorCall& call, const std::tuple<Results...>& results) {
    std::apply([&](const auto&... each) { (hook(groups, call, each), ...); }, results);
  }

  c10::TypedOperatorHandle<Result(Arguments...)> op_;
  OperatorTraits traits_;
};

template <class Signature>
bool register_if_it_fits(torch::Library& library, const c10::OperatorHandle& op) {
  if (!TypedKernel<Signature>::fits(op)) return false;
  std::optional<TypedKernel<Signature>> kernel;
  try {
    kernel.emplace(op);
  } catch (const c10::Error&) {
    return false;  // Its kernels have another signature than its schema suggests, such as the other list of tensors.
  }
  library.impl(c10::toString(op.operator_name()).c_str(), *std::move(kernel));
  return true;
}

/// Registers the kernel for the operator if it has one of the signatures; returns whether.
template <class... Signatures>
bool register_one_of(torch::Library& library, const c10::OperatorHandle& op) {
  return (register_if_it_fits<Signatures>(library, op) || ...);
}

}  // namespace fsdp::runtime
