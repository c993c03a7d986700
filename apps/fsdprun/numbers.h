#pragma once
/// \file
/// Parses whole numbers in flags.

#include <charconv>
#include <limits>
#include <optional>
#include <string_view>

namespace fsdprun {

/// Returns `text` as a whole number from `least` to `most`. Returns nullopt for other text, including signs and spaces.
inline std::optional<int> parse_number(std::string_view text, int least, int most = std::numeric_limits<int>::max()) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < least || value > most) return std::nullopt;
  return value;
}

}  // namespace fsdprun
