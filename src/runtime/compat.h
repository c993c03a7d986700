#pragma once
/// \file
/// The dispatch keys that fsdp uses: for sharded tensors, for operators that deferred_init records, for results that
/// activation checkpoints keep, for batch statistics over several ranks, and for forwards that are compared. This file
/// can also add a key to a tensor, which LibTorch's public interface cannot.

#include <ATen/core/grad_mode.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace fsdp::runtime {

/// The dispatch key of sharded tensors. It comes before autograd and autocast, and LibTorch itself does not use it.
constexpr auto kShardedKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;
static_assert(kShardedKey > c10::DispatchKey::AutogradOther, "the key must come before autograd");
/// The dispatch key that a thread includes while deferred_init defers operators. It comes after kShardedKey and before
/// autograd, and LibTorch itself does not use it.
constexpr auto kDeferredKey = c10::DispatchKey::DeferredInit;
static_assert(kDeferredKey < kShardedKey && kDeferredKey > c10::DispatchKey::AutogradOther);
/// The dispatch key that a thread includes while activation checkpoints keep results of operators. It comes after
/// autograd, and LibTorch itself does not use it.
constexpr auto kKeptResultsKey = c10::DispatchKey::Fake;
static_assert(kKeptResultsKey < c10::DispatchKey::ADInplaceOrView && kKeptResultsKey > c10::DispatchKey::BackendSelect);
/// The dispatch key of running means over several ranks. It comes before all other keys of this file, and LibTorch
/// itself does not use it.
constexpr auto kSyncedKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
static_assert(kSyncedKey > kShardedKey);
/// The dispatch key that a thread includes while results of forwards are compared (fsdp::check_sequence_split). It
/// comes before autograd, and LibTorch itself does not use it.
constexpr auto kComparedKey = c10::DispatchKey::AutocastIPU;
static_assert(kComparedKey < kShardedKey && kComparedKey > c10::DispatchKey::AutogradOther);
/// The keys that come after kShardedKey. The interceptor redispatches an operator to these.
constexpr c10::DispatchKeySet kBelowSharded(c10::DispatchKeySet::FULL_AFTER, kShardedKey);

/// Adds a key to a tensor, so that every operator that takes the tensor or a view of it calls the kernel registered for
/// that key. TensorImpl::key_set_ is protected; a pointer to member taken in a derived class gives access to it.
inline void add_key(c10::TensorImpl& tensor, c10::DispatchKey key) {
  struct KeySetAccess : c10::TensorImpl {
    static c10::DispatchKeySet c10::TensorImpl::* member() { return &KeySetAccess::key_set_; }
  };
  auto& keys = tensor.*KeySetAccess::member();
  keys = keys.add(key);
}

/// While this guard lives, the thread's operators are the library's own: autograd does not record them, and fsdp
/// neither intercepts them nor keeps or compares their results.
struct OwnOperators {
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard unseen{c10::DispatchKeySet({kShardedKey, kKeptResultsKey, kComparedKey})};
};

/// Guard for the call of a user's hook. While it lives, fsdp intercepts the thread's operators again, even if an
/// OwnOperators lives too; autograd records none of them.
struct UsersOperators {
  at::NoGradGuard no_grad;
  c10::impl::ForceDispatchKeyGuard seen{c10::impl::tls_local_dispatch_key_set().included_,
                                        c10::impl::tls_local_dispatch_key_set().excluded_.remove(kShardedKey)};
};

inline bool is_marked(const c10::TensorImpl& tensor) { return tensor.key_set().has(kShardedKey); }

}  // namespace fsdp::runtime
