#pragma once
/// \file
/// Every word is a token: what stands between blanks.

#include <deque>
#include <unordered_map>

#include "train/tokenizers/tokenizer.h"

namespace fsdp::text {

/// A closed vocabulary: `<eos>`, which is a line break, the words of one text in the order in which they first come,
/// and `<unk>`, unless that is a word of the text, as in WikiText. It stands for every other word. `decode` puts one
/// blank between words and a line break for `<eos>`.
///
///     const Words words("a rose is a rose\n");
///     words.encode("is a\n");  // {3, 1, 0}
class Words : public Tokenizer {
 public:
  /// Throws std::invalid_argument if `text` has no words.
  explicit Words(std::string_view text);
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;

  int64_t vocabulary_size() const override { return static_cast<int64_t>(vocabulary_.size()); }
  Tokens encode(std::string_view text) const override;
  std::string decode(std::span<const int64_t> tokens) const override;
  std::string_view unit() const override { return "word"; }

 private:
  int64_t add(std::string_view word);

  std::deque<std::string> vocabulary_;                     // its strings stay where they are while it grows
  std::unordered_map<std::string_view, int64_t> numbers_;  // of the strings there
  int64_t unknown_;
};

}  // namespace fsdp::text
