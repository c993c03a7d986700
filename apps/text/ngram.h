#pragma once
/// \file
/// N-gram models, whose perplexities a language model has to beat.

#include <cstdint>
#include <span>
#include <vector>

namespace text {

/// An interpolated n-gram model with Kneser-Ney smoothing (Chen and Goodman 1999, "An empirical study of smoothing
/// techniques for language modeling", equations 17 to 19, with one discount D per order). For the preceding words w1
/// w2,
///
///     p(w | w1 w2) = max(c(w1 w2 w) - D, 0) / c(w1 w2 .) + D N(w1 w2 .) / c(w1 w2 .) p(w | w2)
///
/// where N counts distinct words, down to 1 / vocabulary. The highest order counts occurrences, lower orders the number
/// of distinct preceding words. D = n1 / (n1 + 2 n2), where n1 and n2 are the numbers of n-grams of the order with
/// count one and two. A text is one sequence, so contexts extend across line ends.
class KneserNey {
 public:
  static constexpr int kOrder = 3;

  /// `training` has tokens from 0 to `vocabulary` - 1. Throws std::invalid_argument if it is empty, if a token is out
  /// of range, or if `vocabulary` is greater than 2^21.
  KneserNey(std::span<const int64_t> training, int64_t vocabulary);

  /// The probability of `token` after `context`, of which at most the last two tokens are used.
  double probability(std::span<const int64_t> context, int64_t token) const;
  /// exp of the mean of -log p over the tokens of `text`, each given those before it. Throws std::invalid_argument if
  /// `text` is empty.
  double perplexity(std::span<const int64_t> text) const;

 private:
  /// The words that follow a context: the sum of their counts, and the number of distinct words.
  struct Followers {
    int64_t total = 0, kinds = 0;
  };
  /// A map from n-grams or contexts, packed into integers in ascending order, to values.
  template <class Value>
  struct Table {
    std::vector<uint64_t> keys;
    std::vector<Value> values;

    void add(uint64_t key, const Value& value);
    const Value* find(uint64_t key) const;
  };
  struct Level {
    explicit Level(std::vector<uint64_t> occurrences);

    Table<int64_t> grams;
    Table<Followers> contexts;
    double discount = 0;
  };

  int64_t vocabulary_;
  std::vector<Level> levels_;  // for one, two and three tokens
};

/// The perplexity of `text` if each token has its relative frequency in `training`, where tokens of `vocabulary` that
/// do not occur count as occurring once. Throws std::invalid_argument if either text is empty.
double unigram_perplexity(std::span<const int64_t> training, std::span<const int64_t> text, int64_t vocabulary);

}  // namespace text
