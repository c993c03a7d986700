#include "text/tokenizers/gpt2_splitter.h"

#include <array>

#include "text/tokenizers/unicode.h"

namespace text {
namespace {

constexpr std::array<std::string_view, 7> kContractions = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};

struct Run {
  size_t end;
  size_t last;  // the position at which the last character begins
};

/// Returns the run of characters of class `kind` that begins at `begin`.
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
  // A piece may have one space before its word.
  const size_t begin = text.front() == ' ' && text.size() > 1 ? 1 : 0;
  const CharacterClass kind = character_at(text, begin).kind;
  if (kind != CharacterClass::kSpace) return run_of(kind, text, begin).end;

  const Run spaces = run_of(CharacterClass::kSpace, text, 0);
  const bool is_at_end = spaces.end == text.size();
  // The last space before a word belongs to the piece of the word.
  return is_at_end || spaces.last == 0 ? spaces.end : spaces.last;
}

}  // namespace text
