#pragma once
/// \file
/// Casts of the floating-point tensors in the arguments and results of a module. A handle casts as the
/// MixedPrecisionPolicy of its group says.

#include <ATen/core/Tensor.h>

#include <concepts>
#include <functional>
#include <optional>
#include <ranges>
#include <tuple>
#include <type_traits>
#include <utility>

namespace c10 {
struct IValue;
}

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup precision
/// \{

class Group;

/// Casts a floating-point tensor to `dtype`; autograd records the cast. Other tensors and undefined ones stay as they
/// are.
void cast_floating(at::Tensor& tensor, at::ScalarType dtype);

/// Dtypes to which a call of a group's handle casts. An unset dtype means no cast.
struct CallCasts {
  std::optional<at::ScalarType> inputs;   ///< the dtype of floating-point arguments
  std::optional<at::ScalarType> outputs;  ///< the dtype of floating-point results
};

/// Returns the casts of the group's MixedPrecisionPolicy. Any thread may call this function.
CallCasts call_casts(const Group& group);

namespace detail {

struct AnyVisit {
  template <class T>
  void operator()(T&) const {}
};

template <class T>
concept HasOwnVisit = requires(T& value, const AnyVisit& visit) { visit_tensors(value, visit); };
template <class T>
concept IsTuple = requires { std::tuple_size<T>::value; };
template <class T>
constexpr bool is_optional = false;
template <class T>
constexpr bool is_optional<std::optional<T>> = true;

/// Returns true if the type T can hold mutable tensors.
template <class T>
consteval bool holds_tensors() {
  if constexpr (std::is_const_v<T>) {
    return false;
  } else if constexpr (std::same_as<T, at::Tensor> || std::same_as<T, c10::IValue> || HasOwnVisit<T>) {
    return true;
  } else if constexpr (is_optional<T>) {
    return holds_tensors<typename T::value_type>();
  } else if constexpr (std::ranges::range<T>) {
    using Element = std::remove_reference_t<std::ranges::range_reference_t<T>>;
    if constexpr (std::same_as<Element, T>)
      return false;  // a range whose elements have type T too, such as std::filesystem::path
    else
      return holds_tensors<Element>();
  } else if constexpr (IsTuple<T>) {
    return []<size_t... I>(std::index_sequence<I...>) {
      return (holds_tensors<std::tuple_element_t<I, T>>() || ...);
    }(std::make_index_sequence<std::tuple_size_v<T>>());
  } else {
    return false;
  }
}

}  // namespace detail

namespace detail {
void visit_ivalue(c10::IValue& value, const std::function<void(at::Tensor&)>& visit);
}

/// Calls `visit` with every mutable tensor in `value`, including undefined ones. Tensors are found in optionals, ranges
/// (vectors, arrays, the values of maps), pairs and tuples, nested in any way, and in the lists, tuples and
/// dictionaries of an IValue, which are copied. For a struct of your own, define a function beside it that calls
/// `visit` with each member that holds tensors:
///
///     struct Batch { torch::Tensor images; std::vector<torch::Tensor> masks; };
///     template <class Visit>
///     void visit_tensors(Batch& batch, const Visit& visit) { visit(batch.images), visit(batch.masks); }
///
/// Immutable elements (at::TensorList, keys, sets) and what pointers point to are not visited.
template <class T, class Visit>
void for_each_tensor(T& value, const Visit& visit) {
  const auto visit_part = [&visit](auto& part) { for_each_tensor(part, visit); };
  if constexpr (!detail::holds_tensors<T>()) {
    return;
  } else if constexpr (std::same_as<T, at::Tensor>) {
    visit(value);
  } else if constexpr (std::same_as<T, c10::IValue>) {
    detail::visit_ivalue(value, visit);
  } else if constexpr (detail::HasOwnVisit<T>) {
    visit_tensors(value, visit_part);
  } else if constexpr (detail::is_optional<T>) {
    if (value) visit_part(*value);
  } else if constexpr (std::ranges::range<T>) {
    for (auto& element : value) visit_part(element);
  } else {
    std::apply([&](auto&... elements) { (visit_part(elements), ...); }, value);
  }
}

/// Casts every floating-point tensor that for_each_tensor finds in `value`. The lists, tuples and dictionaries of an
/// IValue are replaced by copies, not changed in place.
template <class T>
void cast_floating(T& value, at::ScalarType dtype) {
  for_each_tensor(value, [dtype](at::Tensor& tensor) { cast_floating(tensor, dtype); });
}

namespace detail {

/// True if an argument of type Arg is copied and the copy is cast. CastArgument is then the type of the copy, otherwise
/// that of the argument itself.
template <class Arg>
constexpr bool is_cast = holds_tensors<std::decay_t<Arg>>() && std::constructible_from<std::decay_t<Arg>, Arg>;
template <class Arg>
using CastArgument = std::conditional_t<is_cast<Arg>, std::decay_t<Arg>, Arg&&>;

template <class Arg>
CastArgument<Arg> cast_argument(std::remove_reference_t<Arg>& argument, at::ScalarType dtype) {
  if constexpr (is_cast<Arg>) {
    std::decay_t<Arg> copy(static_cast<Arg&&>(argument));
    cast_floating(copy, dtype);
    return copy;
  } else {
    return static_cast<Arg&&>(argument);
  }
}

/// Calls `forward` with its floating-point arguments cast. If `forward` takes an argument by mutable reference, no
/// argument is cast here; operators that read parameters then cast their operands.
template <class Forward, class... Args>
decltype(auto) call_with_inputs(const std::optional<at::ScalarType>& dtype, const Forward& forward, Args&&... args) {
  if constexpr (requires { forward(std::declval<CastArgument<Args>>()...); })
    if (dtype) return forward(cast_argument<Args>(args, *dtype)...);
  return forward(std::forward<Args>(args)...);
}

}  // namespace detail

/// Calls `forward` and casts its arguments and results as the group's policy says. A Sharded handle calls its module in
/// this way. If `forward` returns a reference, this function casts nothing, because the reference may refer to an
/// argument. Throws what `forward` throws.
template <class Forward, class... Args>
decltype(auto) call_with_casts(const Group& group, const Forward& forward, Args&&... args) {
  using Result = decltype(forward(std::forward<Args>(args)...));
  if constexpr (std::is_reference_v<Result>) {
    return forward(std::forward<Args>(args)...);
  } else if constexpr (detail::holds_tensors<Result>()) {
    const auto casts = call_casts(group);
    Result result = detail::call_with_inputs(casts.inputs, forward, std::forward<Args>(args)...);
    if (casts.outputs) cast_floating(result, *casts.outputs);
    return result;
  } else {
    return detail::call_with_inputs(call_casts(group).inputs, forward, std::forward<Args>(args)...);
  }
}

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
