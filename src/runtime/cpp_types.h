#pragma once
/// \file
/// Which C++ types the arguments and results of an operator's schema have.

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

namespace fsdp::runtime {

/// Whether an argument or a result is a T, written to if it is a reference to a tensor.
template <class T>
bool is(const c10::Argument& argument) {
  const bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  return is_written == std::is_same_v<T, at::Tensor&> && *argument.real_type() == *c10::getTypePtr<std::decay_t<T>>();
}
template <class Result>
struct Returns {
  static bool in(const c10::FunctionSchema& schema) {
    return schema.returns().size() == 1 && is<Result>(schema.returns()[0]);
  }
};
template <class... Results>
struct Returns<std::tuple<Results...>> {
  static bool in(const c10::FunctionSchema& schema) {
    return schema.returns().size() == sizeof...(Results) && std::ranges::all_of(schema.returns(), is<at::Tensor>);
  }
};

/// C++ types of operators' arguments and results, in short.
namespace signatures {

using T = const at::Tensor&;
using OptT = const std::optional<at::Tensor>&;
using Written = at::Tensor&;
using List = at::TensorList;
using IList = const at::ITensorListRef&;
using OptList = const c10::List<std::optional<at::Tensor>>&;
using Tensors = std::vector<at::Tensor>;
using Two = std::tuple<at::Tensor, at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Four = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using String = std::string_view;
using OptInt = std::optional<int64_t>;
using S = const at::Scalar&;
using OptS = const std::optional<at::Scalar>&;
using Sym = c10::SymInt;
using OptSym = std::optional<c10::SymInt>;
using Sizes = c10::SymIntArrayRef;
using Dims = c10::IntArrayRef;
using OptDims = at::OptionalIntArrayRef;
using Type = at::ScalarType;
using OptType = std::optional<at::ScalarType>;
using OptLayout = std::optional<at::Layout>;
using OptDevice = std::optional<at::Device>;
using OptMemory = std::optional<at::MemoryFormat>;
using OptBool = std::optional<bool>;
using OptDouble = std::optional<double>;
using OptString = std::optional<std::string_view>;
using at::Tensor;

}  // namespace signatures

}  // namespace fsdp::runtime
