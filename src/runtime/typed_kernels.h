#pragma once
/// \file
/// Which signatures have typed kernels: those of operators that models and optimizers call with parameters.

namespace c10 {
class OperatorHandle;
}
namespace torch {
class Library;
}

namespace fsdp::runtime {

/// Registers a kernel for every aten operator of these signatures; `library` is of aten and of the key of sharded
/// tensors. Operators of any other signature come to the interceptor with their arguments on a stack.
void register_typed_kernels(torch::Library& library);

/// One kind of signatures each. Returns whether the operator has one of them.
namespace signatures {
bool register_arithmetic(torch::Library& library, const c10::OperatorHandle& op);
bool register_in_place(torch::Library& library, const c10::OperatorHandle& op);
bool register_layer(torch::Library& library, const c10::OperatorHandle& op);
bool register_view(torch::Library& library, const c10::OperatorHandle& op);
}  // namespace signatures

}  // namespace fsdp::runtime
