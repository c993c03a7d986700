#pragma once
/// \file
/// Conversion of numbers between the dtypes in memory and in computation. Works on raw memory, not on tensors.

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace fsdp::optim {

// T is float or double. Supported dtypes are kFloat, kDouble, kBFloat16 and kHalf. `from` and `to` must not overlap.

template <class T>
void read_as(T* to, const void* from, c10::ScalarType dtype, int64_t count);

/// Rounds to nearest, ties to even.
template <class T>
void write_as(void* to, c10::ScalarType dtype, const T* from, int64_t count);

/// Writes bf16 with stochastic rounding: each number becomes the neighbour away from zero with a probability equal to
/// its distance from the other neighbour, relative to the distance between the two, so that the expected value is the
/// number. `random` has 16 bits per number. Infinities and NaN are preserved.
template <class T>
void write_stochastically(void* to, const T* from, const uint16_t* random, int64_t count);

}  // namespace fsdp::optim
