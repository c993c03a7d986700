#pragma once
/// \file
/// Traits that say what an operator does with its operands. They follow from its name, its schema and its tags; for
/// conversions also from its arguments.

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>

namespace fsdp::runtime {

enum class OperatorKind : uint8_t {
  kMetadata,    ///< The operator reads only a tensor's metadata, such as its sizes.
  kDetach,      ///< The operator returns a tensor on the same data without autograd's history.
  kFactory,     ///< The operator (*_like, new_*) returns a new tensor of the operand's sizes.
  kView,        ///< The operator returns another tensor on the same storage.
  kViewOrCopy,  ///< The operator returns a view if the strides allow it, otherwise a copy.
  kCopy,        ///< The operator moves values without computing.
  kClone,       ///< The operator returns a copy of the operand; Module::clone calls it for parameters.
  kFill,        ///< The operator writes one value to all elements.
  kForeach,     ///< The operator is element-wise over lists of tensors.
  kFused,       ///< The operator is the step of a fused optimizer.
  kPointwise,   ///< Element i of the result depends only on element i of the operands.
  kReplace,     ///< The operator gives a tensor another storage or type.
  kOther
};

inline bool is_one_of(OperatorKind kind, std::initializer_list<OperatorKind> kinds) {
  return std::ranges::find(kinds, kind) != kinds.end();
}

struct OperatorTraits {
  OperatorKind kind = OperatorKind::kOther;
  /// True if the operator draws random numbers. Ranks with equal seeds would draw the same numbers for different rows.
  bool random = false;
  /// Index of the argument that names the dim, for a view that takes some elements along one dim. kAllDims if the
  /// view may take elements along any dim. Unset for other operators.
  std::optional<size_t> selecting_argument = std::nullopt;
  static constexpr size_t kAllDims = SIZE_MAX;
  /// Bit i is set if the operator writes to argument i. The last bit stands for all arguments from 63 on.
  uint64_t written_arguments = 0;

  bool writes(size_t argument) const { return (written_arguments >> std::min<size_t>(argument, 63)) & 1; }
};

/// Returns the traits of an operator, worked out once per operator and thread. Any thread may call the function.
OperatorTraits operator_traits(const c10::OperatorHandle& op);

enum class Conversion : uint8_t { kConverts, kNothing, kPrints };

/// Returns what the operator does with its first argument. kNothing means that `to` or a similar operator would return
/// the tensor itself, or that `set_data` would give the tensor its own data. kPrints means `to(kCPU, kDouble)`, with
/// which printing a tensor begins.
Conversion conversion_of(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments);

/// Calls `visit` with every defined tensor, the index of the value that contains it and, if that value is a list, the
/// tensor's index in the list (otherwise 0).
template <class Visit>
void visit_tensors(std::span<const c10::IValue> values, const Visit& visit) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].isTensor() && values[i].toTensor().defined()) visit(values[i].toTensor(), i, size_t{0});
    if (!values[i].isList()) continue;
    const auto elements = values[i].toListRef();
    for (size_t j = 0; j < elements.size(); ++j)
      if (elements[j].isTensor() && elements[j].toTensor().defined()) visit(elements[j].toTensor(), i, j);
  }
}

/// Replaces each list among the values by a copy, so that the caller may change its elements.
void own_lists(std::span<c10::IValue> values);
/// Replaces `value` (or, if it is a list, its element number `element`) by the tensor.
void put(c10::IValue& value, size_t element, const at::Tensor& tensor);

/// A call of an operator that has not run yet.
struct OperatorCall {
  struct Operand {
    const at::Tensor* tensor;
    size_t argument;
    size_t element = 0;  ///< the tensor's index if the argument is a list
  };
  const c10::OperatorHandle& op;
  const OperatorTraits& traits;
  /// All defined tensors among the arguments, including those in lists.
  c10::SmallVector<Operand, 4> tensors = {};
  std::span<c10::IValue> arguments = {};
};

/// A tensor that takes the place of an operand before the operator runs.
struct Replacement {
  OperatorCall::Operand operand;
  at::Tensor tensor;
};

}  // namespace fsdp::runtime
