#pragma once
/// \file
/// Interception of attention in models that were not modified for sequence parallelism.

namespace fsdp::parallel {

/// Note [Attention that nobody edits]. `aten::scaled_dot_product_attention` is a composite operator: LibTorch registers
/// no kernel of its own for a backend or for autograd. The library registers one for the dispatch keys CPU, CUDA,
/// AutogradCPU and AutogradCUDA. Autocast has cast the operands before this kernel is called. Unless a SequenceParallel
/// scope is open on the thread or a pipeline stage runs slices of tokens there, the kernel calls LibTorch's composite
/// implementation. The registration replaces no other kernel and affects no other operator. It does not use a dispatch
/// key above autocast, because the library already uses all free ones for other purposes (runtime/compat.h).

/// The first call registers the kernels. Throws Error if another library registered one of them.
void see_attention();

}  // namespace fsdp::parallel
