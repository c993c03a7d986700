#include "optim/convert.h"

#include <bit>
#include <type_traits>

namespace fsdp::optim {
namespace {

void with_type(c10::ScalarType dtype, const auto& act) {
  switch (dtype) {
    case c10::kFloat:
      return act(std::type_identity<float>());
    case c10::kDouble:
      return act(std::type_identity<double>());
    case c10::kBFloat16:
      return act(std::type_identity<c10::BFloat16>());
    case c10::kHalf:
      return act(std::type_identity<c10::Half>());
    default:
      TORCH_CHECK(false, "[fsdp] optimizers: expected floating point numbers, found ", dtype);
  }
}

// A bf16 number is the upper half of an fp32 number. These functions use bit operations without branches, so that the
// compiler can vectorise loops that call them.

float widen(uint16_t upper) { return std::bit_cast<float>(static_cast<uint32_t>(upper) << 16); }

// Returns the upper half of `bits` + `added`, where `bits` is an fp32 number and `added` is below 2^16. Nothing is
// added to infinities and NaN. A NaN gets a bit in the upper half, so that it does not become an infinity.
uint16_t upper_half(uint32_t bits, uint32_t added) {
  const auto magnitude = static_cast<int32_t>(bits & 0x7fffffffU);  // SIMD compares signed integers faster
  const uint32_t finite = magnitude < 0x7f800000 ? 0xffffffffU : 0U;
  const uint32_t no_number = magnitude > 0x7f800000 ? 0x400000U : 0U;
  return static_cast<uint16_t>(((bits + (added & finite)) | no_number) >> 16);
}

uint16_t narrow(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return upper_half(bits, 0x7fffU + ((bits >> 16) & 1U));
}

}  // namespace

template <class T>
void read_as(T* __restrict to, const void* from, c10::ScalarType dtype, int64_t count) {
  with_type(dtype, [&]<class Stored>(std::type_identity<Stored>) {
    if constexpr (std::is_same_v<Stored, c10::BFloat16>) {
      const auto* __restrict stored = static_cast<const uint16_t*>(from);
      for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(widen(stored[i]));
    } else {
      const auto* __restrict stored = static_cast<const Stored*>(from);
      for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(stored[i]);
    }
  });
}

template <class T>
void write_as(void* to, c10::ScalarType dtype, const T* __restrict from, int64_t count) {
  with_type(dtype, [&]<class Stored>(std::type_identity<Stored>) {
    if constexpr (std::is_same_v<Stored, c10::BFloat16>) {
      auto* __restrict stored = static_cast<uint16_t*>(to);
      for (int64_t i = 0; i < count; ++i) stored[i] = narrow(static_cast<float>(from[i]));
    } else {
      auto* __restrict stored = static_cast<Stored*>(to);
      for (int64_t i = 0; i < count; ++i) stored[i] = static_cast<Stored>(from[i]);
    }
  });
}

template <class T>
void write_stochastically(void* to, const T* __restrict from, const uint16_t* __restrict random, int64_t count) {
  auto* __restrict stored = static_cast<uint16_t*>(to);
  for (int64_t i = 0; i < count; ++i)
    stored[i] = upper_half(std::bit_cast<uint32_t>(static_cast<float>(from[i])), random[i]);
}

template void read_as<float>(float*, const void*, c10::ScalarType, int64_t);
template void read_as<double>(double*, const void*, c10::ScalarType, int64_t);
template void write_as<float>(void*, c10::ScalarType, const float*, int64_t);
template void write_as<double>(void*, c10::ScalarType, const double*, int64_t);
template void write_stochastically<float>(void*, const float*, const uint16_t*, int64_t);
template void write_stochastically<double>(void*, const double*, const uint16_t*, int64_t);

}  // namespace fsdp::optim
