#pragma once
/// \file
/// What the error about an operator on a sharded tensor says.

#include <ATen/core/dispatch/Dispatcher.h>

#include "runtime/registry.h"

namespace fsdp::runtime {

/// How errors begin to say what a tensor of this part is: "the gradient of parameter '".
const char* noun_of(PartKind part);

/// Throws UsageError naming the rank, the operator as the user called it, the parameter, what was expected and found,
/// and the ways out. `tensor` lies on `part`; `misfit`: the operand that does not fit it, null if none.
[[noreturn]] void refuse(const c10::OperatorHandle& op, const Part& part, const at::Tensor& tensor,
                         const at::Tensor* misfit, Verdict verdict);

}  // namespace fsdp::runtime
