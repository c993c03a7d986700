#pragma once
/// \file
/// A sum whose bits do not depend on the order of its addends.
///
/// Note [Exact sum]. Floating-point addition is not associative, so the sum of partial sums changes with the places
/// where rows are cut between ranks. Here the sum is an integer, in units of the smallest double (2^-1074) and in
/// digits of 32 bits; every double is such an integer. Integers add up to the same number in any order, and only the
/// result is rounded. The idea is Kulisch's long accumulator (U. Kulisch and W. Miranker, The Arithmetic of the Digital
/// Computer, 1986).

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace fsdp::optim {

/// Adds doubles that are not negative. Infinity and NaN make the result so.
class ExactSum {
 public:
  /// The largest double ends in digit 65; the rest is room for 2^64 of them.
  static constexpr size_t kDigits = 68;
  /// The digits, and the sum of what is not finite.
  static constexpr size_t kWords = kDigits + 1;

  void add(double value);
  void add(ExactSum other);
  /// The sum, rounded the same way whatever came in which order.
  double value() const;

  /// For adding sums of several ranks by a reduction of doubles: whole numbers below 2^32, so that adding them is exact
  /// in any order for up to 2^20 ranks.
  std::array<double, kWords> words() const;
  static ExactSum from_words(std::span<const double, kWords> words);

  /// left - right, rounded once.
  static double difference(ExactSum left, ExactSum right);

 private:
  void carry();

  std::array<uint64_t, kDigits> digits_{};  // below 2^32 after carry()
  uint64_t since_carry_ = 0;                // additions, each of which adds less than 2^33 to a digit
  double not_finite_ = 0;
};

/// The same of doubles of both signs: what is above zero and what is below it, which are subtracted as integers.
class SignedExactSum {
 public:
  static constexpr size_t kWords = 2 * ExactSum::kWords;

  void add(double value) { (value < 0 ? below_ : above_).add(value < 0 ? -value : value); }
  void add(const SignedExactSum& other) {
    above_.add(other.above_);
    below_.add(other.below_);
  }
  double value() const { return ExactSum::difference(above_, below_); }

  /// As ExactSum's.
  std::array<double, kWords> words() const;
  static SignedExactSum from_words(std::span<const double, kWords> words);

 private:
  ExactSum above_, below_;
};

}  // namespace fsdp::optim
