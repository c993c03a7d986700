#pragma once
/// \file
/// The interceptor, which LibTorch's dispatcher calls for each operator that takes a sharded tensor, and the errors by
/// which fsdp refuses such an operator.

#include <ATen/core/dispatch/Dispatcher.h>

#include "runtime/registry.h"

namespace fsdp::runtime {

/// Registers the interceptor with LibTorch's dispatcher, once per process. (A static initialiser cannot do it: the
/// linker would drop it from a static archive.) Throws UsageError if another copy of fsdp in this process has
/// registered its own.
void install_interceptor();

/// Returns true if another copy of fsdp in this process has registered its interceptor, and this copy has not.
bool another_copy_intercepts();

/// Returns the words before a parameter's name in error messages, e.g. "the gradient of parameter '".
const char* noun_of(PartKind part);

/// Throws UsageError if `tensor`, which lies on `part`, shows rows that differ between ranks and no LocalRows is open.
/// `where` begins the message, and `instead` ends it with what the user may do instead.
void require_no_rows(const Part& part, const at::Tensor& tensor, const std::string& where, const std::string& instead);

/// Throws UsageError naming the rank, the operator as the user called it, the parameter, what was expected and found,
/// and the ways out. `tensor` is the sharded operand, which lies on `part`. `misfit` is the other operand that does not
/// fit it, or null.
[[noreturn]] void refuse(const c10::OperatorHandle& op, const Part& part, const at::Tensor& tensor,
                         const at::Tensor* misfit, Verdict verdict);

/// Makes LibTorch's pickler throw UsageError for a tensor that is a parameter's rows or their gradient, except in
/// LocalRows. The function registers itself with torch::jit's BackendMetaSerialization, which the pickler calls once
/// for each tensor and which has one entry for each kind of device; an entry that was there before is called too. Takes
/// effect once per process.
void observe_written_tensors();

}  // namespace fsdp::runtime
