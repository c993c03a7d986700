#pragma once
/// \file
/// Sums of doubles. A sum has the same bits for any order of the addends.
///
/// Note [Exact sum]. Floating-point addition is not associative, so the total of partial sums depends on where rows are
/// divided between ranks. Every finite double is a multiple of the smallest double, 2^-1074. ExactSum therefore keeps
/// the sum as an integer in units of 2^-1074, in digits of 32 bits. Integer sums do not depend on the order, and only
/// the conversion of the result to a double rounds. The idea is Kulisch's long accumulator (U. Kulisch and W. Miranker,
/// The Arithmetic of the Digital Computer, 1986).

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace fsdp::optim {

/// A sum of non-negative doubles. If an addend is infinity or NaN, so is the result.
class ExactSum {
 public:
  /// Number of digits. The highest bit of the largest double is in digit 65, so there is room for the sum of 2^64 such
  /// numbers.
  static constexpr size_t kDigits = 68;
  /// Number of words in `words()`: one for each digit, and one for the sum of the non-finite addends.
  static constexpr size_t kWords = kDigits + 1;

  void add(double value);
  void add(ExactSum other);
  /// Returns the sum as a double, with the same bits for any order of additions.
  double value() const;

  /// Returns the sum as doubles, which ranks can add by an all-reduce: they are integers below 2^32, so the sums of up
  /// to 2^20 ranks' words are exact in any order.
  std::array<double, kWords> words() const;
  /// Returns the sum that `words` represents, where `words` is the element-wise sum of several ranks' `words()`.
  static ExactSum from_words(std::span<const double, kWords> words);

  /// Returns left - right, which is computed with integers and then rounded.
  static double difference(ExactSum left, ExactSum right);

 private:
  void carry();

  std::array<uint64_t, kDigits> digits_{};  // the lowest digit first; each is below 2^32 after carry()
  uint64_t since_carry_ = 0;                // additions since carry(); each adds less than 2^33 to a digit
  double not_finite_ = 0;
};

/// A sum of doubles of any sign. It keeps one sum of the positive addends and one of the negative addends, and
/// subtracts them as integers.
class SignedExactSum {
 public:
  static constexpr size_t kWords = 2 * ExactSum::kWords;

  void add(double value) { (value < 0 ? below_ : above_).add(value < 0 ? -value : value); }
  void add(const SignedExactSum& other) {
    above_.add(other.above_);
    below_.add(other.below_);
  }
  double value() const { return ExactSum::difference(above_, below_); }

  /// See ExactSum::words and ExactSum::from_words.
  std::array<double, kWords> words() const;
  static SignedExactSum from_words(std::span<const double, kWords> words);

 private:
  ExactSum above_, below_;
};

}  // namespace fsdp::optim
