#pragma once
/// \file
/// An operator on its way to be carried out, and what it does with its operands, read off its schema, its tags and, of
/// conversions, its arguments.

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>

namespace fsdp::runtime {

enum class OperatorKind : uint8_t {
  kMetadata,    ///< reads sizes only
  kDetach,      ///< the same data without autograd
  kFactory,     ///< *_like, new_*: a new tensor of the operand's sizes
  kView,        ///< another tensor on the same storage
  kViewOrCopy,  ///< the same where strides allow it, else a copy
  kCopy,        ///< moves values without computing
  kClone,       ///< a copy of the operand; of a parameter itself it is Module::clone
  kFill,        ///< writes one value
  kForeach,     ///< element-wise over lists
  kFused,       ///< fused optimizers
  kPointwise,   ///< element i of the result depends on element i of the operands
  kReplace,     ///< gives a tensor another storage or type
  kOther
};

inline bool is_one_of(OperatorKind kind, std::initializer_list<OperatorKind> kinds) {
  return std::ranges::find(kinds, kind) != kinds.end();
}

struct OperatorTraits {
  OperatorKind kind = OperatorKind::kOther;
  /// Draws random numbers: with one seed every rank would draw the same ones for other rows.
  bool random = false;
  /// Of a view: which argument names the dim along which it takes some elements; kAllDims: it may be any.
  std::optional<size_t> selecting_argument = std::nullopt;
  static constexpr size_t kAllDims = SIZE_MAX;
  /// Bit i: argument i is written (the last bit stands for all later ones).
  uint64_t written_arguments = 0;

  bool writes(size_t argument) const { return (written_arguments >> std::min<size_t>(argument, 63)) & 1; }
};

/// The traits of an operator; worked out once per operator and thread. Thread safety: all of it.
OperatorTraits operator_traits(const c10::OperatorHandle& op);

enum class Conversion : uint8_t { kConverts, kNothing, kPrints };

/// Says what the operator does with its first argument. kNothing: `to` and its kin would return the tensor itself, or
/// `set_data` gets it. kPrints: what printing a tensor begins with, `to` with exactly the CPU and double.
Conversion conversion_of(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments);

/// Calls `visit` with every defined tensor, the index of its value, and its index in that if it is a list.
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

/// Lists among the values are copies from now on, which nobody else has.
void own_lists(std::span<c10::IValue> values);
/// Puts the tensor in place of the value, or of the element of a list.
void put(c10::IValue& value, size_t element, const at::Tensor& tensor);

struct OperatorCall {
  struct Operand {
    const at::Tensor* tensor;
    size_t argument;
    size_t element = 0;  ///< of a list
  };
  const c10::OperatorHandle& op;
  const OperatorTraits& traits;
  /// Every defined tensor, those in lists too.
  c10::SmallVector<Operand, 4> tensors = {};
  std::span<c10::IValue> arguments = {};
};

struct Replacement {
  OperatorCall::Operand operand;
  at::Tensor tensor;
};

}  // namespace fsdp::runtime
