#pragma once
/// \file
/// Decodes and classifies UTF-8 characters.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace text {

/// The classes that GPT-2's pattern distinguishes: \p{L}, \p{N}, \s, and everything else.
enum class CharacterClass : uint8_t { kLetter, kNumber, kSpace, kOther };

struct Character {
  CharacterClass kind = CharacterClass::kOther;
  /// Number of bytes.
  size_t length = 1;
};

/// Returns the character at `position`. `position` must be inside `text`. A byte that does not begin a valid UTF-8
/// character counts as one character of class kOther.
Character character_at(std::string_view text, size_t position);

}  // namespace text
