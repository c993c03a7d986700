#pragma once
/// \file
/// Which C++ types the arguments and results of an operator's schema have.

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

namespace fsdp::runtime {

/// Whether a schema's type is a T in C++.
template <class T>
struct Is;
template <c10::TypeKind Kind>
struct IsKind {
  static bool in(const c10::Type& type) { return type.kind() == Kind; }
};
template <>
struct Is<at::Tensor> : IsKind<c10::TypeKind::TensorType> {};
template <>
struct Is<at::Scalar> : IsKind<c10::TypeKind::NumberType> {};
template <>
struct Is<at::ScalarType> : IsKind<c10::TypeKind::ScalarTypeType> {};
template <>
struct Is<at::Layout> : IsKind<c10::TypeKind::LayoutType> {};
template <>
struct Is<at::Device> : IsKind<c10::TypeKind::DeviceObjType> {};
template <>
struct Is<at::MemoryFormat> : IsKind<c10::TypeKind::MemoryFormatType> {};
template <>
struct Is<c10::SymInt> : IsKind<c10::TypeKind::SymIntType> {};
template <>
struct Is<int64_t> : IsKind<c10::TypeKind::IntType> {};
template <>
struct Is<double> : IsKind<c10::TypeKind::FloatType> {};
template <>
struct Is<bool> : IsKind<c10::TypeKind::BoolType> {};
template <>
struct Is<std::string_view> : IsKind<c10::TypeKind::StringType> {};
template <class T>
struct IsList {
  static bool in(const c10::Type& type) {
    return type.kind() == c10::TypeKind::ListType && Is<T>::in(*type.containedType(0));
  }
};
template <>
struct Is<c10::SymIntArrayRef> : IsList<c10::SymInt> {};
template <>
struct Is<c10::IntArrayRef> : IsList<int64_t> {};
// Both are lists of tensors; which of the two an operator takes, its kernels know.
template <>
struct Is<at::TensorList> : IsList<at::Tensor> {};
template <>
struct Is<at::ITensorListRef> : IsList<at::Tensor> {};
template <class T>
struct Is<std::optional<T>> {
  static bool in(const c10::Type& type) {
    return type.kind() == c10::TypeKind::OptionalType && Is<T>::in(*type.containedType(0));
  }
};
template <class T>
struct Is<c10::OptionalArrayRef<T>> : Is<std::optional<c10::ArrayRef<T>>> {};
template <>
struct Is<c10::List<std::optional<at::Tensor>>> : IsList<std::optional<at::Tensor>> {};
template <>
struct Is<std::vector<at::Tensor>> : IsList<at::Tensor> {};

/// Whether an argument or a result is a T, written to if it is a reference to a tensor.
template <class T>
bool is(const c10::Argument& argument) {
  const bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  return is_written == std::is_same_v<T, at::Tensor&> && Is<std::decay_t<T>>::in(*argument.real_type());
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
