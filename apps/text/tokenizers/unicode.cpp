#include "text/tokenizers/unicode.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "text/tokenizers/unicode_ranges.h"

namespace text {
namespace {

// The characters with the Unicode property White_Space.
constexpr Range kSpaces[] = {{0x9, 0xD},       {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
                             {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};

bool is_in(const auto& ranges, uint32_t code) {
  const auto next = std::upper_bound(std::begin(ranges), std::end(ranges), code,
                                     [](uint32_t value, const Range& range) { return value < range.first; });
  return next != std::begin(ranges) && code <= std::prev(next)->last;
}

CharacterClass look_up(uint32_t code) {
  if (is_in(kLetters, code)) return CharacterClass::kLetter;
  if (is_in(kNumbers, code)) return CharacterClass::kNumber;
  return is_in(kSpaces, code) ? CharacterClass::kSpace : CharacterClass::kOther;
}

/// Returns the number of bytes of a character that begins with the byte `lead`, or 0 if no character can begin with it.
size_t length_after(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) return 3;
  return lead < 0xF5 ? 4 : 0;
}

}  // namespace

Character character_at(std::string_view text, size_t position) {
  static const auto ascii = [] {
    std::array<CharacterClass, 128> classes;
    for (uint32_t code = 0; code < classes.size(); ++code) classes[code] = look_up(code);
    return classes;
  }();
  const auto lead = static_cast<unsigned char>(text[position]);
  if (lead < ascii.size()) return {ascii[lead], 1};

  const size_t length = length_after(lead);
  if (length == 0 || position + length > text.size()) return {};
  uint32_t code = lead & (0x7FU >> length);
  for (size_t i = 1; i < length; ++i) {
    const auto byte = static_cast<unsigned char>(text[position + i]);
    if ((byte & 0xC0U) != 0x80U) return {};
    code = code << 6U | (byte & 0x3FU);
  }
  const bool is_too_long = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (is_too_long || is_surrogate || code > 0x10FFFF) return {};
  return {look_up(code), length};
}

}  // namespace text
