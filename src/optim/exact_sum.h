#pragma once
/// \file
/// A sum whose bits do not depend on the order of the addends.
///
/// Note [Exact sum]. Floating-point addition is not associative, so the total of partial sums depends on where rows are
/// divided between ranks. This class keeps the sum as an integer, in units of the smallest double (2^-1074) and in
/// digits of 32 bits; every double is such an integer. Integer sums do not depend on the order, and only the result is
/// rounded. The idea is Kulisch's long accumulator (U. Kulisch and W. Miranker, The Arithmetic of the Digital Computer,
/// 1986).

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace fsdp::optim {

/// A sum of non-negative doubles. An infinity or NaN makes the result infinity or NaN.
class ExactSum {
 public:
  /// The largest double ends in digit 65; the other digits leave room for 2^64 of them.
  static constexpr size_t kDigits = 68;
  /// Number of words: the digits, and the sum of non-finite addends.
  static constexpr size_t kWords = kDigits + 1;

  void add(double value);
  void add(ExactSum other);
  /// The sum as a double, with the same bits for any order of additions.
  double value() const;

  /// The sum as doubles that ranks can add by a reduction: integers below 2^32, so adding them is exact in any order
  /// for up to 2^20 ranks.
  std::array<double, kWords> words() const;
  static ExactSum from_words(std::span<const double, kWords> words);

  /// The difference left - right, which is computed with integers and then rounded.
  static double difference(ExactSum left, ExactSum right);

 private:
  void carry();

  std::array<uint64_t, kDigits> digits_{};  // below 2^32 after carry()
  uint64_t since_carry_ = 0;                // number of additions, each of which adds less than 2^33 to a digit
  double not_finite_ = 0;
};

/// A sum of doubles of any sign: positive and negative addends are summed separately and subtracted as integers.
class SignedExactSum {
 public:
  static constexpr size_t kWords = 2 * ExactSum::kWords;

  void add(double value) { (value < 0 ? below_ : above_).add(value < 0 ? -value : value); }
  void add(const SignedExactSum& other) {
    above_.add(other.above_);
    below_.add(other.below_);
  }
  double value() const { return ExactSum::difference(above_, below_); }

  /// See ExactSum::words.
  std::array<double, kWords> words() const;
  static SignedExactSum from_words(std::span<const double, kWords> words);

 private:
  ExactSum above_, below_;
};

}  // namespace fsdp::optim
