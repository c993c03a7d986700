#pragma once
/// \file
/// What the error about an operator on a sharded tensor says, and the one about rows that LibTorch writes to a file or
/// a string, e.g. torch::save(model->parameters(), "p.pt").

#include <ATen/core/dispatch/Dispatcher.h>

#include "runtime/registry.h"

namespace fsdp::runtime {

/// How errors begin to say what a tensor of this part is: "the gradient of parameter '".
const char* noun_of(PartKind part);

/// Throws UsageError naming the rank, the operator as the user called it, the parameter, what was expected and found,
/// and the ways out. `tensor` lies on `part`; `misfit`: the operand that does not fit it, null if none.
[[noreturn]] void refuse(const c10::OperatorHandle& op, const Part& part, const at::Tensor& tensor,
                         const at::Tensor* misfit, Verdict verdict);

/// From now on LibTorch asks here before it pickles a tensor: rows of a parameter or of its gradient are refused by a
/// UsageError outside of LocalRows, as whoever reads them would take their sizes for the parameter's. Once per process.
///
/// It uses the place where LibTorch asks a backend what it wants to keep with a tensor, of which there is one for each
/// kind of device. What was there before is asked too.
void observe_written_tensors();

}  // namespace fsdp::runtime
