#pragma once
/// \file
/// What happens before and after an operator that takes a sharded tensor.

namespace fsdp::runtime {

/// Registers the interceptor with LibTorch's dispatcher, once per process. A call rather than a static initialiser,
/// which the linker would drop from a static archive.
/// Throws UsageError if another copy of the library, or somebody else, has done that already.
void install_interceptor();

/// Whether somebody else intercepts sharded tensors, and not this copy of the library.
bool another_copy_intercepts();

}  // namespace fsdp::runtime
