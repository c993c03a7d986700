#pragma once
/// \file
/// Parts of forward that backward computes again instead of keeping what they compute on the way.

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

/// How a part of forward is computed again. The same on every rank.
struct CheckpointOptions {
  /// What draws random numbers draws the same ones again: the states of the default generators of the CPU, of the
  /// devices that the inputs are on and of the current one are kept. Without it dropout has another mask in backward.
  /// Other threads that draw from the CPU's generator while the part runs, e.g. those that load data, shift its
  /// numbers: give them a generator of their own.
  bool preserve_rng_state = true;
  /// The inputs are kept in pinned host memory. They leave while the part runs, on a stream of their own, and come back
  /// while the part that ran after it is computed again; the host waits for no copy. Tensors on the CPU stay where they
  /// are, and so do those with gaps, as of a slice, or whose elements are several in one place, as of `expand`.
  bool offload_inputs = false;
  /// Results of operators that are kept instead of computed again, asked by the operator's name, e.g. "aten::mm", for
  /// each call below autograd. Those that write, return views, cast or draw random numbers are computed again in any
  /// case; fused attention draws with dropout only.
  /// Empty: none are kept. It answers the same whenever it is asked.
  std::function<bool(std::string_view operator_name)> keeps_results = {};
  /// Tensors that the part writes on the way, e.g. running statistics: computing it again leaves them as they are. A
  /// module that is given in place of a function has its buffers left so without being named here.
  std::vector<at::Tensor> buffers = {};
};

/// For CheckpointOptions::keeps_results: products of matrices, convolutions and fused attention, whose results cost
/// most to compute (selective activation recomputation, arXiv:2205.05198, section 5, which keeps all but attention's
/// inside).
bool is_product(std::string_view operator_name);

namespace detail {

/// A part of forward with all but its tensors.
class Recomputation {
 public:
  virtual ~Recomputation() = default;
  /// Runs it with `tensors` in place of those that its inputs held, in their order.
  virtual void run(std::vector<at::Tensor> tensors) = 0;
  virtual std::vector<at::Tensor> buffers() const = 0;
  /// By name. Those of a module.
  virtual std::vector<std::pair<std::string, at::Tensor>> parameters() const = 0;
};

/// While it lives, what autograd would keep on this thread is left out, to be computed again.
class [[nodiscard]] CheckpointedForward {
 public:
  CheckpointedForward(const CheckpointOptions& options, const std::vector<at::Tensor>& inputs,
                      std::unique_ptr<Recomputation> again);
  ~CheckpointedForward();
  CheckpointedForward(const CheckpointedForward&) = delete;
  CheckpointedForward& operator=(const CheckpointedForward&) = delete;
  /// The part has run. Throws UsageError if it wrote to an input.
  void finish();

 private:
  struct Running;
  std::unique_ptr<Running> running_;
};

/// Called, or if it cannot be, a pointer to a module. The holder of a Sequential says that a call gives nothing.
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
/// Refers to memory of somebody else, who need not keep it until backward.
template <class T>
constexpr bool only_refers = is_array_ref<T> || std::ranges::view<T>;

/// An input that was copied, as the one that was given.
template <class Input>
decltype(auto) as_given(std::decay_t<Input>& copy) {
  if constexpr (std::is_same_v<std::remove_cvref_t<Input>, std::decay_t<Input>>)
    return static_cast<Input&&>(copy);
  else
    return std::move(copy);  // an array's pointer
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

/// Runs `fn(inputs...)` and returns what it returns. What autograd would keep of it for backward is left out; backward
/// runs `fn` again as soon as it needs any of it, up to the last tensor that it needs (Chen et al., arXiv:1604.06174).
/// Results, gradients and double backward are those of the plain call, bit by bit, with sharded parameters and without;
/// calls nest; a part may be called outside of one too. Without gradients it is the plain call.
///
/// `fn` is a function, a module's holder, a `std::shared_ptr` to a module or a handle of fully_shard. It is copied, and
/// so are its inputs: tensors in any of the places where fsdp::cast_floating finds them, and other values, all of which
/// must be as they were until backward is over. What `fn` captures by reference must live until then. It returns what
/// it likes. It has to do the same both times: neither write to its inputs nor depend on what changes in between;
/// what it does beside its result it does twice (CheckpointOptions::buffers).
///
/// Collective where `fn` is: every rank runs it again at the same place of backward. Any thread. Throws what `fn`
/// throws, and UsageError if an input was written: by `fn` at once, later in backward; backward also throws UsageError
/// where `fn` does something else the second time, and where parameters of a module that is given, or what autograd
/// kept of `fn`, were written since.
///
///     for (auto& block : blocks) x = fsdp::activation_checkpoint(block, x, mask);
///     const auto mlp_of = [=](const torch::Tensor& h) { return mlp->forward(h); };
///     x = fsdp::activation_checkpoint({.offload_inputs = true}, mlp_of, x);
template <class Fn, class... Inputs>
[[nodiscard]] decltype(auto) activation_checkpoint(const CheckpointOptions& options, Fn&& fn, Inputs&&... inputs) {
  using Result = decltype(detail::call_forward(fn, std::forward<Inputs>(inputs)...));
  static_assert(!std::is_void_v<Result> && !std::is_arithmetic_v<std::remove_cvref_t<Result>>,
                "fsdp::activation_checkpoint: fn returns no tensor, so backward will not come to it");
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

/// The same with the default options.
template <class Fn, class... Inputs>
  requires(!std::is_convertible_v<Fn, CheckpointOptions>)
[[nodiscard]] decltype(auto) activation_checkpoint(Fn&& fn, Inputs&&... inputs) {
  return activation_checkpoint(CheckpointOptions{}, std::forward<Fn>(fn), std::forward<Inputs>(inputs)...);
}

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
