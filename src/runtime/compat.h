#pragma once
/// \file
/// The dispatch keys that fsdp uses: for sharded tensors, for operators that deferred_init records, for results that
/// checkpoints keep, for batch statistics over several ranks, and for forwards that are compared. Also how a tensor
/// gets a key, for which LibTorch has no public interface.

#include <ATen/core/grad_mode.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace fsdp::runtime {

/// The dispatch key of sharded tensors: above autograd and autocast, and used by nothing else in LibTorch.
constexpr auto kShardedKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;
static_assert(kShardedKey > c10::DispatchKey::AutogradOther, "the key must come before autograd");
/// That of stretches in which operators are put off: below the one before, and used by nothing in LibTorch.
constexpr auto kDeferredKey = c10::DispatchKey::DeferredInit;
static_assert(kDeferredKey < kShardedKey && kDeferredKey > c10::DispatchKey::AutogradOther);
/// That of stretches in which results of operators are kept: below autograd, and used by nothing in LibTorch.
constexpr auto kKeptResultsKey = c10::DispatchKey::Fake;
static_assert(kKeptResultsKey < c10::DispatchKey::ADInplaceOrView && kKeptResultsKey > c10::DispatchKey::BackendSelect);
/// The dispatch key of running means over several ranks: before all others, and used by nothing in LibTorch.
constexpr auto kSyncedKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
static_assert(kSyncedKey > kShardedKey);
/// The dispatch key of forwards whose operators' results are compared (fsdp::check_sequence_split): above autograd, and
/// used by nothing in LibTorch.
constexpr auto kComparedKey = c10::DispatchKey::AutocastIPU;
static_assert(kComparedKey < kShardedKey && kComparedKey > c10::DispatchKey::AutogradOther);
/// The keys an operator goes on with after the interceptor.
constexpr c10::DispatchKeySet kBelowSharded(c10::DispatchKeySet::FULL_AFTER, kShardedKey);

/// Adds a key to a tensor: every operator that takes it, or a view of it, then comes by what is registered for the key.
/// The key set is protected; a pointer to member taken in a derived class reaches it.
inline void add_key(c10::TensorImpl& tensor, c10::DispatchKey key) {
  struct KeySetAccess : c10::TensorImpl {
    static c10::DispatchKeySet c10::TensorImpl::* member() { return &KeySetAccess::key_set_; }
  };
  auto& keys = tensor.*KeySetAccess::member();
  keys = keys.add(key);
}

inline void mark_sharded(c10::TensorImpl& tensor) { add_key(tensor, kShardedKey); }

/// While it lives, the thread's operators are the library's own: not recorded, intercepted, kept or compared.
struct OwnOperators {
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard unseen{c10::DispatchKeySet({kShardedKey, kKeptResultsKey, kComparedKey})};
};

/// While it lives, in which a hook of the user's is called, the interceptor sees the thread's operators again, also
/// under OwnOperators; autograd records none.
struct UsersOperators {
  at::NoGradGuard no_grad;
  c10::impl::ForceDispatchKeyGuard seen{c10::impl::tls_local_dispatch_key_set().included_,
                                        c10::impl::tls_local_dispatch_key_set().excluded_.remove(kShardedKey)};
};

inline bool is_marked(const c10::TensorImpl& tensor) { return tensor.key_set().has(kShardedKey); }

}  // namespace fsdp::runtime
