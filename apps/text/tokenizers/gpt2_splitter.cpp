#include "text/tokenizers/gpt2_splitter.h"

#include <array>

#include "text/tokenizers/unicode.h"

namespace text {
namespace {

constexpr std::array<std::string_view, 7> kContractions = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};

struct Run {
  size_t end;
  size_t last;  // where the last character begins
};

/// The characters of class `kind` from `begin` on.
Run run_of(CharacterClass kind, std::string_view text, size_t begin) {
  Run run{begin, begin};
  while (run.end < text.size()) {
    const Character next = character_at(text, run.end);
    if (next.kind != kind) break;
    run.last = run.end;
    run.end += next.length;
  }
  return run;
}

}  // namespace

size_t gpt2_piece(std::string_view text) {
  for (const auto contraction : kContractions) {
    if (text.starts_with(contraction)) return contraction.size();
  }
  // A space may precede a word.
  const size_t begin = text.front() == ' ' && text.size() > 1 ? 1 : 0;
  const CharacterClass kind = character_at(text, begin).kind;
  if (kind != CharacterClass::kSpace) return run_of(kind, text, begin).end;

  const Run spaces = run_of(CharacterClass::kSpace, text, 0);
  const bool is_at_end = spaces.end == text.size();
  // The last space before a word belongs to the word's piece.
  return is_at_end || spaces.last == 0 ? spaces.end : spaces.last;
}

}  // namespace text
