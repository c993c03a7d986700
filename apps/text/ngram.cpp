#include "text/ngram.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>

namespace text {
namespace {

constexpr int kBits = 21;  // number of bits of a token, so that a key has room for three tokens

/// Returns the last `count` tokens of a key.
uint64_t last_of(uint64_t key, int count) { return key & ((uint64_t{1} << (kBits * count)) - 1); }

void check_tokens(std::span<const int64_t> tokens, int64_t vocabulary) {
  if (tokens.empty()) throw std::invalid_argument("an n-gram model needs a text that is not empty");
  for (const int64_t token : tokens) {
    if (token < 0 || token >= vocabulary) {
      throw std::invalid_argument("token " + std::to_string(token) + " is outside of a vocabulary of " +
                                  std::to_string(vocabulary));
    }
  }
}

/// Returns exp of the mean of -log `probability(i)` over the positions i of a text.
double perplexity_of(size_t size, const auto& probability) {
  if (size == 0) throw std::invalid_argument("an empty text has no perplexity");
  double sum = 0;
  for (size_t i = 0; i < size; ++i) sum -= std::log(probability(i));
  return std::exp(sum / static_cast<double>(size));
}

}  // namespace

template <class Value>
void KneserNey::Table<Value>::add(uint64_t key, const Value& value) {
  keys.push_back(key);
  values.push_back(value);
}

template <class Value>
const Value* KneserNey::Table<Value>::find(uint64_t key) const {
  const auto found = std::lower_bound(keys.begin(), keys.end(), key);
  return found == keys.end() || *found != key ? nullptr : &values[static_cast<size_t>(found - keys.begin())];
}

KneserNey::Level::Level(std::vector<uint64_t> occurrences) {
  std::sort(occurrences.begin(), occurrences.end());
  for (const uint64_t key : occurrences) {
    if (grams.keys.empty() || grams.keys.back() != key) grams.add(key, 0);
    ++grams.values.back();
  }
  for (size_t i = 0; i < grams.keys.size(); ++i) {
    const uint64_t context = grams.keys[i] >> kBits;
    if (contexts.keys.empty() || contexts.keys.back() != context) contexts.add(context, {});
    contexts.values.back().total += grams.values[i];
    ++contexts.values.back().kinds;
  }
  const auto ones = static_cast<double>(std::count(grams.values.begin(), grams.values.end(), 1));
  const auto twos = static_cast<double>(std::count(grams.values.begin(), grams.values.end(), 2));
  // The discount must not be 0, because some probability must remain for words that have not followed a context.
  discount = ones > 0 ? ones / (ones + 2 * twos) : 0.5;
}

KneserNey::KneserNey(std::span<const int64_t> training, int64_t vocabulary) : vocabulary_(vocabulary) {
  if (vocabulary > int64_t{1} << kBits) {
    throw std::invalid_argument("an n-gram model supports a vocabulary of at most 2^21 words, found " +
                                std::to_string(vocabulary));
  }
  check_tokens(training, vocabulary);
  std::vector<uint64_t> occurrences;
  uint64_t key = 0;
  for (size_t i = 0; i < training.size(); ++i) {
    key = last_of(key << kBits | static_cast<uint64_t>(training[i]), kOrder);
    if (i + 1 >= kOrder) occurrences.push_back(key);
  }
  levels_.emplace_back(std::move(occurrences));
  // An n-gram of a lower order counts once for each distinct preceding word.
  for (int order = kOrder - 1; order > 0; --order) {
    occurrences.clear();
    for (const uint64_t gram : levels_.back().grams.keys) occurrences.push_back(last_of(gram, order));
    levels_.emplace_back(std::move(occurrences));
  }
  std::reverse(levels_.begin(), levels_.end());
}

double KneserNey::probability(std::span<const int64_t> context, int64_t token) const {
  const int orders = std::min(kOrder, static_cast<int>(context.size()) + 1);
  double result = 1 / static_cast<double>(vocabulary_);
  uint64_t before = 0;
  for (int order = 1; order <= orders; ++order) {
    if (order > 1) {
      const auto word = static_cast<uint64_t>(context[context.size() - static_cast<size_t>(order - 1)]);
      before |= word << (kBits * (order - 2));
    }
    const Level& level = levels_[static_cast<size_t>(order - 1)];
    const Followers* followers = level.contexts.find(before);
    if (followers == nullptr) break;  // if a context did not occur, longer contexts did not occur either
    const int64_t* count = level.grams.find(before << kBits | static_cast<uint64_t>(token));
    const double kept = count == nullptr ? 0.0 : std::max(static_cast<double>(*count) - level.discount, 0.0);
    const double spread = level.discount * static_cast<double>(followers->kinds);
    result = (kept + spread * result) / static_cast<double>(followers->total);
  }
  return result;
}

double KneserNey::perplexity(std::span<const int64_t> text) const {
  return perplexity_of(text.size(), [&](size_t i) { return probability(text.first(i), text[i]); });
}

double unigram_perplexity(std::span<const int64_t> training, std::span<const int64_t> text, int64_t vocabulary) {
  check_tokens(training, vocabulary);
  check_tokens(text, vocabulary);
  std::vector<int64_t> counts(static_cast<size_t>(vocabulary));
  for (const int64_t token : training) ++counts[static_cast<size_t>(token)];
  for (int64_t& count : counts) count = std::max<int64_t>(count, 1);
  const auto total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  return perplexity_of(text.size(),
                       [&](size_t i) { return static_cast<double>(counts[static_cast<size_t>(text[i])]) / total; });
}

}  // namespace text
