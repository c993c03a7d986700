#include "optim/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace fsdp::optim {
namespace {

constexpr int kDigitBits = 32, kMantissaBits = 52, kSmallestExponent = -1074;
constexpr uint64_t kDigitMask = 0xffff'ffff;
constexpr uint64_t kMaxAdditions = uint64_t{1} << 30;

}  // namespace

void ExactSum::add(double value) {
  if (value == 0) return;
  if (!std::isfinite(value)) {
    not_finite_ += value;
    return;
  }
  const auto bits = std::bit_cast<uint64_t>(value);
  uint64_t mantissa = bits & ((uint64_t{1} << kMantissaBits) - 1), exponent = bits >> kMantissaBits;
  if (exponent > 0) mantissa |= uint64_t{1} << kMantissaBits;  // the implicit bit of a normal number
  const uint64_t position = exponent > 0 ? exponent - 1 : 0;   // value = mantissa * 2^(position - 1074)
  const uint64_t digit = position / kDigitBits, shift = position % kDigitBits;
  const uint64_t low = (mantissa & kDigitMask) << shift, high = (mantissa >> kDigitBits) << shift;
  digits_[digit] += low & kDigitMask;
  digits_[digit + 1] += (low >> kDigitBits) + (high & kDigitMask);
  digits_[digit + 2] += high >> kDigitBits;
  if (++since_carry_ == kMaxAdditions) carry();
}

void ExactSum::add(ExactSum other) {
  carry();
  other.carry();
  for (size_t i = 0; i < kDigits; ++i) digits_[i] += other.digits_[i];
  carry();
  not_finite_ += other.not_finite_;
}

void ExactSum::carry() {
  for (size_t i = 0; i + 1 < kDigits; ++i) {
    digits_[i + 1] += digits_[i] >> kDigitBits;
    digits_[i] &= kDigitMask;
  }
  since_carry_ = 0;
}

double ExactSum::value() const {
  if (not_finite_ != 0) return not_finite_;  // a NaN also compares unequal to 0
  ExactSum sum = *this;
  sum.carry();
  double value = 0;
  for (size_t i = 0; i < kDigits; ++i)
    value += std::ldexp(static_cast<double>(sum.digits_[i]), static_cast<int>(i) * kDigitBits + kSmallestExponent);
  return value;
}

std::array<double, ExactSum::kWords> ExactSum::words() const {
  ExactSum sum = *this;
  sum.carry();
  std::array<double, kWords> words{};
  for (size_t i = 0; i < kDigits; ++i) words[i] = static_cast<double>(sum.digits_[i]);
  words[kDigits] = not_finite_;
  return words;
}

ExactSum ExactSum::from_words(std::span<const double, kWords> words) {
  ExactSum sum;
  for (size_t i = 0; i < kDigits; ++i) sum.digits_[i] = static_cast<uint64_t>(words[i]);
  sum.not_finite_ = words[kDigits];
  sum.carry();
  return sum;
}

double ExactSum::difference(ExactSum left, ExactSum right) {
  left.carry();
  right.carry();
  if (left.not_finite_ != 0 || right.not_finite_ != 0) return left.not_finite_ - right.not_finite_;
  // The iterators are reversed because the highest digit, which is the last one, decides first.
  const bool is_negative = std::ranges::lexicographical_compare(left.digits_.rbegin(), left.digits_.rend(),
                                                                right.digits_.rbegin(), right.digits_.rend());
  if (is_negative) std::swap(left, right);
  uint64_t borrow = 0;
  for (size_t i = 0; i < kDigits; ++i) {
    const uint64_t less = right.digits_[i] + borrow;
    borrow = left.digits_[i] < less ? 1 : 0;
    left.digits_[i] += (borrow << kDigitBits) - less;
  }
  return is_negative ? -left.value() : left.value();
}

std::array<double, SignedExactSum::kWords> SignedExactSum::words() const {
  std::array<double, kWords> words{};
  std::ranges::copy(above_.words(), words.begin());
  std::ranges::copy(below_.words(), words.begin() + ExactSum::kWords);
  return words;
}

SignedExactSum SignedExactSum::from_words(std::span<const double, kWords> words) {
  SignedExactSum sum;
  sum.above_ = ExactSum::from_words(words.first<ExactSum::kWords>());
  sum.below_ = ExactSum::from_words(words.last<ExactSum::kWords>());
  return sum;
}

}  // namespace fsdp::optim
