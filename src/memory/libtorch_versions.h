#pragma once
/// \file
/// Code that differs between the supported releases of LibTorch. No other file depends on LibTorch's version.

#include <c10/core/StorageImpl.h>
#include <torch/version.h>

static_assert(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 11 && TORCH_VERSION_MINOR <= 15,
              "fsdp supports LibTorch 2.11 to 2.15");

namespace fsdp::memory {

#if TORCH_VERSION_MINOR < 13
/// Gives access to a private member of StorageImpl. C++ lets an explicit instantiation name private members, and the
/// friend function returns the member that the instantiation named.
template <auto kMember>
struct PrivateMember {
  friend constexpr auto throws_on_access() { return kMember; }
};
constexpr auto throws_on_access();
template struct PrivateMember<&c10::StorageImpl::throw_on_immutable_data_ptr_>;
#endif

/// Undoes `release_data_and_set_meta_custom_data_ptr_error_msg_`. The caller must call `set_data_ptr_noswap` next,
/// because releases before 2.13 decide only there whether access to the storage throws.
inline void lift_access_error(c10::StorageImpl& storage) {
#if TORCH_VERSION_MINOR < 13
  storage.*throws_on_access() = false;
#else
  storage.clear_data_ptr_access_error_msg_();
#endif
}

}  // namespace fsdp::memory
