#pragma once
/// \file
/// Where the dispatcher calls before an operator that takes a sharded tensor.

namespace fsdp::runtime {

/// Registers the interceptor with LibTorch's dispatcher, once per process. A call rather than a static initialiser,
/// which the linker would drop from a static archive.
void install_interceptor();

}  // namespace fsdp::runtime
