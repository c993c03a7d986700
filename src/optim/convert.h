#pragma once
/// \file
/// Conversion between the dtype in which numbers are stored and the dtype in which an optimizer computes. The functions
/// take pointers instead of tensors.

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace fsdp::optim {

// T, the type of the computation, is float or double. `dtype`, the type in memory, is kFloat, kDouble, kBFloat16 or
// kHalf. `from` and `to` have `count` numbers each and must not overlap.

/// Converts numbers of `dtype` to T.
template <class T>
void read_as(T* to, const void* from, c10::ScalarType dtype, int64_t count);

/// Converts numbers from T to `dtype`. Rounds to nearest, ties to even; a double becomes a float before it becomes bf16
/// or fp16.
template <class T>
void write_as(void* to, c10::ScalarType dtype, const T* from, int64_t count);

/// Converts numbers from T to bf16 with stochastic rounding. A number lies between two neighbouring bf16 numbers. It
/// becomes the one that is further from zero with a probability of (its distance from the other one) / (distance
/// between the two), so the expected value is the number itself. `random` has 16 random bits for each number. An
/// infinity or a NaN stays one.
template <class T>
void write_stochastically(void* to, const T* from, const uint16_t* random, int64_t count);

}  // namespace fsdp::optim
