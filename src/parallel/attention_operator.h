#pragma once
/// \file
/// How attention of unmodified models is seen.

namespace fsdp::parallel {

/// Note [Attention that nobody edits]. `aten::scaled_dot_product_attention` is a composite: LibTorch has no kernel of
/// its own for any dispatch key. So the library may register one, for the keys of autograd and of the backends on CPU
/// and CUDA. It is called below autocast, which has cast the operands by then, and does what LibTorch's composite does
/// unless a scope is open on the thread. No key is taken from anybody, and no other operator is touched; of those keys
/// above autocast that LibTorch leaves free the library has given all to other uses (runtime/compat.h).
///
/// Registers the kernels, once. Throws Error if somebody else registered one.
void see_attention();

}  // namespace fsdp::parallel
