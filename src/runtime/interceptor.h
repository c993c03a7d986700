#pragma once
/// \file
/// What happens before and after an operator that takes a sharded tensor, and what the errors say that refuse one.

#include <ATen/core/dispatch/Dispatcher.h>

#include "runtime/registry.h"

namespace fsdp::runtime {

/// Registers the interceptor with LibTorch's dispatcher, once per process. A static initialiser would be dropped from a
/// static archive by the linker. Throws UsageError if another copy of the library has done that already.
void install_interceptor();

/// Whether somebody else intercepts sharded tensors, and not this copy of the library.
bool another_copy_intercepts();

/// How errors begin to say what a tensor of this part is: "the gradient of parameter '".
const char* noun_of(PartKind part);

/// Throws UsageError if `tensor`, which lies on `part`, has rows that differ between ranks, outside of LocalRows.
void require_no_rows(const Part& part, const at::Tensor& tensor, const std::string& where, const std::string& instead);

/// Throws UsageError naming the rank, the operator as the user called it, the parameter, what was expected and found,
/// and the ways out. `tensor` lies on `part`; `misfit`: the operand that does not fit it, null if none.
[[noreturn]] void refuse(const c10::OperatorHandle& op, const Part& part, const at::Tensor& tensor,
                         const at::Tensor* misfit, Verdict verdict);

/// From now on LibTorch asks here before it pickles a tensor: rows of a parameter or of its gradient are refused by a
/// UsageError outside of LocalRows. It uses the place where LibTorch asks a backend what it wants to keep with a
/// tensor, of which there is one for each kind of device; what was there before is asked too. Once per process.
void observe_written_tensors();

}  // namespace fsdp::runtime
