#pragma once
/// \file
/// N-gram models. Their perplexities are baselines that a language model has to beat.

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
/// where c(...) is a count, c(w1 w2 .) is the sum of the counts of all words that follow w1 w2, and N(w1 w2 .) is the
/// number of distinct words among them. The recursion ends with the uniform probability 1 / vocabulary. In the highest
/// order, the count of an n-gram is the number of its occurrences. In lower orders it is the number of distinct words
/// that precede the n-gram. D = n1 / (n1 + 2 n2), where n1 and n2 are the numbers of n-grams of the order with count
/// one and two. A text is one sequence, so contexts extend across line ends.
class KneserNey {
 public:
  static constexpr int kOrder = 3;

  /// Counts the n-grams of `training`, a text of tokens from 0 to `vocabulary` - 1. Throws std::invalid_argument if the
  /// text is empty, if a token is out of range, or if `vocabulary` is greater than 2^21.
  KneserNey(std::span<const int64_t> training, int64_t vocabulary);

  /// Returns the probability of `token` after `context`. Only the last two tokens of `context` matter.
  double probability(std::span<const int64_t> context, int64_t token) const;
  /// Returns the perplexity of `text`: exp of the mean of -log p over its tokens, where p is the probability of a token
  /// after the tokens before it. Throws std::invalid_argument if `text` is empty.
  double perplexity(std::span<const int64_t> text) const;

 private:
  /// The words that follow a context: `total` is the sum of their counts, `kinds` is the number of distinct words.
  struct Followers {
    int64_t total = 0, kinds = 0;
  };
  /// A map from n-grams or contexts to values. Each key is an n-gram packed into an integer; keys are in ascending
  /// order.
  template <class Value>
  struct Table {
    std::vector<uint64_t> keys;
    std::vector<Value> values;

    void add(uint64_t key, const Value& value);
    const Value* find(uint64_t key) const;
  };
  /// The n-grams of one order.
  struct Level {
    explicit Level(std::vector<uint64_t> occurrences);

    Table<int64_t> grams;
    Table<Followers> contexts;
    double discount = 0;
  };

  int64_t vocabulary_;
  std::vector<Level> levels_;  // the orders one, two and three
};

/// Returns the perplexity of `text` if the probability of each token is its relative frequency in `training`. Tokens of
/// the vocabulary that do not occur in `training` count as occurring once. Throws std::invalid_argument if either text
/// is empty or has a token outside of the vocabulary.
double unigram_perplexity(std::span<const int64_t> training, std::span<const int64_t> text, int64_t vocabulary);

}  // namespace text
