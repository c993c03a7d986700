#include "numbers.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e4m3fnuz.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Float8_e5m2fnuz.h>
#include <c10/util/Float8_e8m0fnu.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace ckpt {
namespace {

using fsdp::state::Dtype;

// Calls `act` with a number of the C++ type that represents `dtype`.
auto with_type(Dtype dtype, const auto& act) {
  switch (dtype) {
    case Dtype::kBool:
    case Dtype::kUInt8:
      return act(uint8_t{});
    case Dtype::kInt8:
      return act(int8_t{});
    case Dtype::kFloat8E5M2:
      return act(c10::Float8_e5m2{});
    case Dtype::kFloat8E4M3:
      return act(c10::Float8_e4m3fn{});
    case Dtype::kFloat8E5M2FNUZ:
      return act(c10::Float8_e5m2fnuz{});
    case Dtype::kFloat8E4M3FNUZ:
      return act(c10::Float8_e4m3fnuz{});
    case Dtype::kFloat8E8M0:
      return act(c10::Float8_e8m0fnu{});
    case Dtype::kInt16:
      return act(int16_t{});
    case Dtype::kUInt16:
      return act(uint16_t{});
    case Dtype::kFloat16:
    case Dtype::kComplex32:
      return act(c10::Half{});
    case Dtype::kBFloat16:
      return act(c10::BFloat16{});
    case Dtype::kInt32:
      return act(int32_t{});
    case Dtype::kUInt32:
      return act(uint32_t{});
    case Dtype::kFloat32:
    case Dtype::kComplex64:
      return act(float{});
    case Dtype::kFloat64:
    case Dtype::kComplex128:
      return act(double{});
    case Dtype::kInt64:
      return act(int64_t{});
    case Dtype::kUInt64:
      return act(uint64_t{});
  }
  throw std::invalid_argument("expected a dtype");
}

// Rounds integers of more than 53 bits.
double to_double(auto number) {
  if constexpr (std::is_arithmetic_v<decltype(number)>)
    return static_cast<double>(number);
  else
    return static_cast<double>(static_cast<float>(number));
}

std::vector<double> numbers_in(Bytes bytes, Dtype dtype) {
  return with_type(dtype, [&]<class Number>(Number number) {
    std::vector<double> numbers;
    numbers.reserve(bytes.size() / sizeof number);
    for (size_t at = 0; at < bytes.size(); at += sizeof number) {
      std::memcpy(&number, bytes.data() + at, sizeof number);
      numbers.push_back(to_double(number));
    }
    return numbers;
  });
}

double distance(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const auto difference = std::abs(a - b);
  return std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
}

// Returns the largest difference of 64-bit integers. It is exact, where a difference of doubles could be 0 for
// different integers.
template <class Number>
double largest_distance_of(Bytes a, Bytes b) {
  uint64_t largest = 0;
  for (size_t at = 0; at < a.size(); at += sizeof(Number)) {
    Number x, y;
    std::memcpy(&x, a.data() + at, sizeof x);
    std::memcpy(&y, b.data() + at, sizeof y);
    const auto greater = static_cast<uint64_t>(std::max(x, y)), less = static_cast<uint64_t>(std::min(x, y));
    largest = std::max(largest, greater - less);
  }
  return static_cast<double>(largest);
}

}  // namespace

bool is_float(Dtype dtype) {
  return dtype == Dtype::kFloat64 || dtype == Dtype::kFloat32 || dtype == Dtype::kFloat16 || dtype == Dtype::kBFloat16;
}

std::vector<std::byte> convert(Bytes bytes, Dtype from, Dtype to) {
  if (from == to) return {bytes.begin(), bytes.end()};
  const auto numbers = numbers_in(bytes, from);
  std::vector<std::byte> converted(numbers.size() * bytes_of(to));
  with_type(to, [&]<class Number>(Number number) {
    auto* out = converted.data();
    for (const auto value : numbers) {
      if constexpr (std::is_same_v<Number, double>)
        number = value;
      else
        number = static_cast<Number>(static_cast<float>(value));
      std::memcpy(out, &number, sizeof number);
      out += sizeof number;
    }
  });
  return converted;
}

double largest_difference(Bytes a, Dtype dtype_of_a, Bytes b, Dtype dtype_of_b) {
  if (dtype_of_a == dtype_of_b) {
    if (std::equal(a.begin(), a.end(), b.begin(), b.end())) return 0;
    if (dtype_of_a == Dtype::kInt64) return largest_distance_of<int64_t>(a, b);
    if (dtype_of_a == Dtype::kUInt64) return largest_distance_of<uint64_t>(a, b);
  }
  const auto in_a = numbers_in(a, dtype_of_a), in_b = numbers_in(b, dtype_of_b);
  double largest = 0;
  for (size_t i = 0; i < in_a.size(); ++i) largest = std::max(largest, distance(in_a[i], in_b[i]));
  return largest;
}

}  // namespace ckpt
