#pragma once
/// \file
/// Characters of UTF-8 and their classes.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fsdp::text {

/// What GPT-2's pattern tells apart: \p{L}, \p{N}, \s, and everything else.
enum class CharacterClass : uint8_t { kLetter, kNumber, kSpace, kOther };

struct Character {
  CharacterClass kind = CharacterClass::kOther;
  /// Bytes.
  size_t length = 1;
};

/// The character that begins at `position`, which lies inside `text`. A byte that begins no valid character of UTF-8 is
/// one of class kOther.
Character character_at(std::string_view text, size_t position);

}  // namespace fsdp::text
