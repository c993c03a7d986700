#pragma once
/// \file
/// Activation checkpointing: backward recomputes regions of forward instead of keeping their intermediate activations.

#include <ATen/core/grad_mode.h>
#include <fsdp/cast.h>

#include <functional>
#include <memory>
#include <ranges>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup memory
/// \{

/// Options of activation_checkpoint. Every rank must pass the same options.
struct CheckpointOptions {
  /// True if recomputation draws the same random numbers as forward. activation_checkpoint then saves the state of the
  /// default generators of the CPU, of the devices of the inputs and of the current device when the region begins. If
  /// false, dropout uses another mask in backward. Other threads, such as data loaders, must not draw from the CPU's
  /// default generator while the region runs, because the second run would then draw other numbers; give those threads
  /// their own generators.
  bool preserve_rng_state = true;
  /// True if the inputs are kept in pinned host memory. A separate stream copies them there while the region runs, and
  /// back while backward recomputes the region that ran after this one. The host does not wait for these copies.
  /// Tensors on the CPU stay where they are, as do tensors with gaps or repeated elements in memory, such as columns of
  /// a matrix and results of `expand`.
  bool offload_inputs = false;
  /// Function that returns true if the results of an operator, such as "aten::mm", are kept instead of recomputed. It
  /// is called for each operator below autograd and must always return the same value for the same name. Operators that
  /// write, return views, cast or draw random numbers are always recomputed (fused attention draws random numbers only
  /// if it has dropout). An empty function keeps no results.
  std::function<bool(std::string_view operator_name)> keeps_results = {};
  /// Tensors that the region writes, such as running statistics. When a recomputation ends, these tensors have the
  /// values that they had before it. Buffers of a module that is passed as `fn` are included automatically.
  std::vector<at::Tensor> buffers = {};
};

/// Returns true for matrix products, convolutions and fused attention, whose results cost most to recompute. Use it as
/// CheckpointOptions::keeps_results (selective activation recomputation, arXiv:2205.05198, section 5).
bool is_product(std::string_view operator_name);

namespace detail {

/// The function and inputs of a checkpointed region, without the inputs' tensors.
class Recomputation {
 public:
  virtual ~Recomputation() = default;
  /// Calls the function with `tensors` as the tensors of its inputs, in visiting order.
  virtual void run(std::vector<at::Tensor> tensors) = 0;
  virtual std::vector<at::Tensor> buffers() const = 0;
  /// Returns the named parameters if the function is a module, otherwise an empty list.
  virtual std::vector<std::pair<std::string, at::Tensor>> parameters() const = 0;
};

/// Guard of a checkpointed region: autograd keeps none of the tensors that it saves on this thread while the guard
/// lives, and backward recomputes them.
class [[nodiscard]] CheckpointedForward {
 public:
  CheckpointedForward(const CheckpointOptions& options, const std::vector<at::Tensor>& inputs,
                      std::unique_ptr<Recomputation> again);
  ~CheckpointedForward();
  CheckpointedForward(const CheckpointedForward&) = delete;
  CheckpointedForward& operator=(const CheckpointedForward&) = delete;
  /// Ends the region after `fn` has returned. Throws UsageError if the region wrote to an input.
  void finish();

 private:
  struct Running;
  std::unique_ptr<Running> running_;
};

/// Calls `fn`, or `fn->forward` if `fn` is a pointer to a module. The holder of a Sequential can be called, but its
/// call operator is declared to return void, so this function calls `fn->forward` for it too.
template <class Fn, class... Inputs>
decltype(auto) call_forward(Fn& fn, Inputs&&... inputs) {
  if constexpr (std::is_invocable_v<Fn&, Inputs...>) {
    if constexpr (std::is_void_v<std::invoke_result_t<Fn&, Inputs...>> &&
                  requires { fn->forward(std::forward<Inputs>(inputs)...); })
      return fn->forward(std::forward<Inputs>(inputs)...);
    else
      return std::invoke(fn, std::forward<Inputs>(inputs)...);
  } else {
    return fn->forward(std::forward<Inputs>(inputs)...);
  }
}

template <class T>
constexpr bool is_array_ref = false;
template <class T>
constexpr bool is_array_ref<c10::ArrayRef<T>> = true;
/// True if T refers to memory that it does not own and that may be gone in backward.
template <class T>
constexpr bool only_refers = is_array_ref<T> || std::ranges::view<T>;

/// Returns the copy of an input with the value category of the original input.
template <class Input>
decltype(auto) as_given(std::decay_t<Input>& copy) {
  if constexpr (std::is_same_v<std::remove_cvref_t<Input>, std::decay_t<Input>>)
    return static_cast<Input&&>(copy);
  else
    return std::move(copy);  // the original was an array, which decayed to a pointer
}

template <class Fn, class... Inputs>
class RecomputedFn final : public Recomputation {
 public:
  RecomputedFn(Fn fn, std::tuple<std::decay_t<Inputs>...> inputs) : fn_(std::move(fn)), inputs_(std::move(inputs)) {}

  void run(std::vector<at::Tensor> tensors) override {
    auto inputs = inputs_;
    size_t next = 0;
    for_each_tensor(inputs, [&](at::Tensor& tensor) { tensor = std::move(tensors.at(next++)); });
    std::apply([this](auto&... each) { call_forward(fn_, as_given<Inputs>(each)...); }, inputs);
  }
  std::vector<at::Tensor> buffers() const override {
    if constexpr (requires { std::vector<at::Tensor>(fn_->buffers()); })
      return fn_->buffers();
    else
      return {};
  }
  std::vector<std::pair<std::string, at::Tensor>> parameters() const override {
    std::vector<std::pair<std::string, at::Tensor>> parameters;
    if constexpr (requires { fn_->named_parameters(); })
      for (const auto& parameter : fn_->named_parameters()) parameters.emplace_back(parameter.key(), parameter.value());
    return parameters;
  }

 private:
  Fn fn_;
  const std::tuple<std::decay_t<Inputs>...> inputs_;
};

}  // namespace detail

/// Runs `fn(inputs...)` and returns its result without keeping the tensors that autograd would save for backward. When
/// backward needs the first of them, it runs `fn` again, up to the last tensor that is needed (Chen et al.,
/// arXiv:1604.06174). Results, gradients and double backward have the same bits as without checkpointing, whether
/// parameters are sharded or not. Calls may be nested. With grad mode disabled this function only calls `fn`.
///
/// `fn` is a function, a module holder, a `std::shared_ptr` to a module, or a handle of fully_shard. `fn` and its
/// inputs are copied. The inputs' tensors are those that fsdp::for_each_tensor finds; what other inputs refer to, and
/// what `fn` captures by reference, must stay valid and unchanged until backward is over. `fn` must do the same in both
/// runs: it must not write to its inputs or depend on anything else that changes, and its side effects happen twice
/// (see CheckpointOptions::buffers).
///
/// Collective if `fn` is collective, because every rank runs `fn` again at the same point of backward. Any thread may
/// call this function. Throws what `fn` throws, and UsageError if `fn` wrote to an input. Backward throws UsageError if
/// the second run of `fn` differs from the first, or if an input, a parameter of the module `fn`, or a tensor that
/// autograd saved has been written in place since the first run.
///
///     for (auto& block : blocks) x = fsdp::activation_checkpoint(block, x, mask);
///     const auto mlp_of = [=](const torch::Tensor& h) { return mlp->forward(h); };
///     x = fsdp::activation_checkpoint({.offload_inputs = true}, mlp_of, x);
template <class Fn, class... Inputs>
[[nodiscard]] decltype(auto) activation_checkpoint(const CheckpointOptions& options, Fn&& fn, Inputs&&... inputs) {
  using Result = decltype(detail::call_forward(fn, std::forward<Inputs>(inputs)...));
  static_assert(!std::is_void_v<Result> && !std::is_arithmetic_v<std::remove_cvref_t<Result>>,
                "fsdp::activation_checkpoint: fn returns no tensor, so backward will never reach fn");
  static_assert((!detail::only_refers<std::decay_t<Inputs>> && ...),
                "fsdp::activation_checkpoint: an input refers to memory that may be gone in backward: pass a vector or "
                "a string instead of an ArrayRef, span or string_view");
  if (!at::GradMode::is_enabled()) return detail::call_forward(fn, std::forward<Inputs>(inputs)...);
  std::tuple<std::decay_t<Inputs>...> kept(inputs...);
  std::vector<at::Tensor> tensors;
  for_each_tensor(kept, [&](at::Tensor& tensor) { tensors.push_back(std::exchange(tensor, at::Tensor())); });
  detail::CheckpointedForward forward(
      options, tensors, std::make_unique<detail::RecomputedFn<std::decay_t<Fn>, Inputs...>>(fn, std::move(kept)));
  tensors.clear();
  decltype(auto) result = detail::call_forward(fn, std::forward<Inputs>(inputs)...);
  forward.finish();
  return result;
}

/// Calls the overload above with default options.
template <class Fn, class... Inputs>
  requires(!std::is_convertible_v<Fn, CheckpointOptions>)
[[nodiscard]] decltype(auto) activation_checkpoint(Fn&& fn, Inputs&&... inputs) {
  return activation_checkpoint(CheckpointOptions{}, std::forward<Fn>(fn), std::forward<Inputs>(inputs)...);
}

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
