#pragma once
/// \file
/// What counting alone gives: the perplexities that a language model has to beat.

#include <cstdint>
#include <span>
#include <vector>

namespace fsdp::text {

/// An interpolated n-gram model with Kneser-Ney's smoothing: Chen and Goodman 1999, "An empirical study of smoothing
/// techniques for language modeling", equations 17 to 19, with one discount D for each order. For the words before, w1
/// w2,
///
///     p(w | w1 w2) = max(c(w1 w2 w) - D, 0) / c(w1 w2 .) + D N(w1 w2 .) / c(w1 w2 .) p(w | w2)
///
/// where N counts different words, and so on down to 1 / vocabulary. The highest order counts how often, lower ones
/// after how many different words; D = n1 / (n1 + 2 n2), where n1 and n2 are how many counts of the order are one and
/// two. A text is one sequence: contexts reach over the ends of lines.
class KneserNey {
 public:
  static constexpr int kOrder = 3;

  /// `training`: numbers from 0 below `vocabulary`. Throws std::invalid_argument if there are none, one is outside, or
  /// `vocabulary` is above 2^21.
  KneserNey(std::span<const int64_t> training, int64_t vocabulary);

  /// Of `token` after `context`, of which at most the last two count.
  double probability(std::span<const int64_t> context, int64_t token) const;
  /// exp of the mean of -log p over `text`, each token after those before it. Throws std::invalid_argument if it is
  /// empty.
  double perplexity(std::span<const int64_t> text) const;

 private:
  /// What follows a context: the sum of its counts, and how many different words.
  struct Followers {
    int64_t total = 0, kinds = 0;
  };
  /// Values by n-grams or contexts, which are packed into numbers in ascending order.
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
  std::vector<Level> levels_;  // of one, two, and three tokens
};

/// The perplexity of `text` if each token had the share that it has in `training`, and one of `vocabulary` that is not
/// there came once. Throws std::invalid_argument if either is empty.
double unigram_perplexity(std::span<const int64_t> training, std::span<const int64_t> text, int64_t vocabulary);

}  // namespace fsdp::text
