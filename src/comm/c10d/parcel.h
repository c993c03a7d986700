#pragma once
/// \file
/// How the tensors that one rank has for another one are divided into messages. Pure.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace fsdp {

/// What travels in one message: several small tensors, or a single one.
using Parcel = std::vector<at::Tensor>;

/// The parcels of `tensors`: small ones share a parcel, and larger ones follow in stretches of at most `most` bytes,
/// each by itself. They depend on sizes and dtypes alone, so both ends divide alike. Empty tensors are left out.
std::vector<Parcel> parcels_of(std::span<const at::Tensor> tensors,
                               int64_t most = std::numeric_limits<int64_t>::max());

/// The bytes of a parcel, in which each tensor begins at a multiple of 16 bytes.
int64_t bytes_of(const Parcel& parcel);

/// Tensors like those of `parcel`, as they lie in `memory`.
Parcel parcel_in(std::byte* memory, const Parcel& parcel);

}  // namespace fsdp
