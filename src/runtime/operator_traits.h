#pragma once
/// \file
/// What an operator does with its operands, read off its schema, its tags and, of conversions, its arguments.

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
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

/// What a conversion such as `to` does with its operand.
enum class Conversion : uint8_t { kConverts, kNothing, kPrints };

/// Says what the operator does with its first argument. kNothing: `to` and its kin would return the tensor itself,
/// `set_data` gets the tensor itself. kPrints: what printing a tensor begins with, `to` with exactly the CPU and double.
Conversion conversion_of(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments);

}  // namespace fsdp::runtime
