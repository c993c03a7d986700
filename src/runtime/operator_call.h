#pragma once
/// \file
/// An operator on its way to be carried out, with its arguments.

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <optional>
#include <span>

#include "runtime/operator_traits.h"

namespace fsdp::runtime {

/// An operator with what it is called with.
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
  /// Where the operator takes elements by their numbers along a dim that is known.
  std::optional<int64_t> selecting_dim = {};
  /// All arguments on the stack, where operands are replaced.
  std::span<c10::IValue> arguments = {};

  void add(size_t argument, const at::Tensor& tensor, size_t element = 0) {
    if (tensor.defined()) tensors.push_back({&tensor, argument, element});
  }
};

/// What of an operator's arguments is replaced on the stack.
struct Replacement {
  OperatorCall::Operand operand;
  at::Tensor tensor;
};

}  // namespace fsdp::runtime
