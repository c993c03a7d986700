#include "text/tokenizers/words.h"

#include <algorithm>
#include <stdexcept>

namespace text {
namespace {

constexpr std::string_view kEndOfLine = "<eos>", kUnknown = "<unk>";

/// Calls `on_word` with each word and `on_line_break` for each line break.
void for_each_word(std::string_view text, const auto& on_word, const auto& on_line_break) {
  constexpr std::string_view kBreaks = " \t\r\v\f\n";
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of(kBreaks), text.size());
    if (end > 0) on_word(text.substr(0, end));
    if (end < text.size() && text[end] == '\n') on_line_break();
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

}  // namespace

int64_t Words::add(std::string_view word) {
  const auto found = numbers_.find(word);
  if (found != numbers_.end()) return found->second;
  const int64_t number = vocabulary_size();
  numbers_.emplace(vocabulary_.emplace_back(word), number);
  return number;
}

Words::Words(std::string_view text) {
  add(kEndOfLine);
  for_each_word(text, [this](std::string_view word) { add(word); }, [] {});
  if (vocabulary_.size() == 1) throw std::invalid_argument("a text without words has no vocabulary");
  unknown_ = add(kUnknown);
}

Tokens Words::encode(std::string_view text) const {
  Tokens tokens;
  const auto add_word = [&](std::string_view word) {
    const auto found = numbers_.find(word);
    tokens.push_back(found == numbers_.end() ? unknown_ : found->second);
  };
  for_each_word(text, add_word, [&] { tokens.push_back(0); });
  return tokens;
}

std::string Words::decode(std::span<const int64_t> tokens) const {
  std::string text;
  for (const int64_t token : tokens) {
    const std::string& word = vocabulary_.at(static_cast<size_t>(token));
    if (token == 0) {
      text += '\n';
    } else {
      if (!text.empty() && text.back() != '\n') text += ' ';
      text += word;
    }
  }
  return text;
}

}  // namespace text
