#pragma once
/// \file
/// For hooks of the user that the library calls.

#include "runtime/compat.h"

namespace fsdp::runtime {

/// While it lives, the interceptor sees the thread's operators again, also under OwnOperators; autograd records none.
struct UsersOperators {
  at::NoGradGuard no_grad;
  c10::impl::ForceDispatchKeyGuard seen{c10::impl::tls_local_dispatch_key_set().included_,
                                        c10::impl::tls_local_dispatch_key_set().excluded_.remove(kShardedKey)};
};

}  // namespace fsdp::runtime
