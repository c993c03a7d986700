#pragma once
/// \file
/// A tokenizer whose tokens are words that are separated by white space.

#include <deque>
#include <unordered_map>

#include "text/tokenizers/tokenizer.h"

namespace text {

/// A tokenizer with a closed vocabulary: `<eos>` for line breaks, the words of one text in the order of their first
/// occurrence, and `<unk>` for all other words. If the text contains `<unk>` as a word, as WikiText does, it is the
/// same token. `decode` separates words by one space and writes a line break for `<eos>`.
///
///     const Words words("a rose is a rose\n");
///     words.encode("is a\n");  // {3, 1, 0}
class Words : public Tokenizer {
 public:
  /// Makes the vocabulary of `text`. Throws std::invalid_argument if `text` has no words.
  explicit Words(std::string_view text);
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;

  int64_t vocabulary_size() const override { return static_cast<int64_t>(vocabulary_.size()); }
  Tokens encode(std::string_view text) const override;
  std::string decode(std::span<const int64_t> tokens) const override;
  std::string_view unit() const override { return "word"; }

 private:
  int64_t add(std::string_view word);

  std::deque<std::string> vocabulary_;                     // a deque never moves its strings; numbers_ refers to them
  std::unordered_map<std::string_view, int64_t> numbers_;  // the number of each string of vocabulary_
  int64_t unknown_;
};

}  // namespace text
