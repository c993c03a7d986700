#include "text/tokenizers/characters.h"

#include <bitset>
#include <stdexcept>

namespace text {
namespace {

constexpr int64_t kAbsent = -1;

size_t code_of(char character) { return static_cast<unsigned char>(character); }

[[noreturn]] void throw_unknown(char character, size_t position) {
  throw std::invalid_argument("byte " + std::to_string(position) + " of the text has the code " +
                              std::to_string(code_of(character)) +
                              ", which does not occur in the text that the vocabulary was made from");
}

}  // namespace

Characters::Characters(std::string_view text) {
  if (text.empty()) throw std::invalid_argument("an empty text has no vocabulary");
  std::bitset<256> present;
  for (const char character : text) present.set(code_of(character));
  numbers_.fill(kAbsent);
  for (size_t code = 0; code < present.size(); ++code) {
    if (!present[code]) continue;
    numbers_[code] = static_cast<int64_t>(vocabulary_.size());
    vocabulary_ += static_cast<char>(code);
  }
}

Tokens Characters::encode(std::string_view text) const {
  Tokens tokens;
  tokens.reserve(text.size());
  for (const char character : text) {
    const int64_t number = numbers_[code_of(character)];
    if (number == kAbsent) throw_unknown(character, tokens.size());
    tokens.push_back(number);
  }
  return tokens;
}

std::string Characters::decode(std::span<const int64_t> tokens) const {
  std::string text;
  text.reserve(tokens.size());
  for (const int64_t token : tokens) text += vocabulary_.at(static_cast<size_t>(token));
  return text;
}

}  // namespace text
