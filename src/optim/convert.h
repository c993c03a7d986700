#pragma once
/// \file
/// Numbers between the dtype in which they lie in memory and that in which they are computed with. No tensors.

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace fsdp::optim {

// T: float or double. Dtypes: kFloat, kDouble, kBFloat16, kHalf. `from` and `to` do not overlap.

template <class T>
void read_as(T* to, const void* from, c10::ScalarType dtype, int64_t count);

/// Rounds to the nearest, ties to even.
template <class T>
void write_as(void* to, c10::ScalarType dtype, const T* from, int64_t count);

/// Writes bf16. Each number becomes the neighbour away from zero if its `random` bits are among the highest, as many of
/// the 2^16 as there are parts between it and the other neighbour, so that the mean is the number. Infinities and what
/// is no number stay so.
template <class T>
void write_stochastically(void* to, const T* from, const uint16_t* random, int64_t count);

}  // namespace fsdp::optim
