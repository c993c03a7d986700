#pragma once
/// \file
/// Functions that write text which is the same in every process, whatever the process passed to std::locale::global.
///
/// Note [Numbers in text]
/// A stream takes the locale that is global when the stream is constructed, and c10::str and c10::Join write to such a
/// stream: with a French locale a thousand is "1 000". Ranks compare texts, look up keys that are made of them and
/// parse numbers in them, and other programs read files and errors. So the library writes text with the functions in
/// this file. std::to_string of an integer and std::from_chars ignore the locale. tools/check_layers.py finds uses of
/// other functions.

#include <cstdint>
#include <iomanip>
#include <locale>
#include <sstream>
#include <string>
#include <utility>

namespace fsdp {

/// A std::ostringstream with the classic locale. See Note [Numbers in text].
class TextWriter : public std::ostringstream {
 public:
  TextWriter() { imbue(std::locale::classic()); }
};

/// A std::istringstream with the classic locale.
class TextReader : public std::istringstream {
 public:
  explicit TextReader(const std::string& text) : std::istringstream(text) { imbue(std::locale::classic()); }
};

/// Concatenates the parts as operator<< writes them.
template <class... Parts>
std::string str_cat(const Parts&... parts) {
  TextWriter text;
  static_cast<void>((text << ... << parts));
  return text.str();
}

/// Formats a number of bytes as "3.21 MB", or from 10 MB on as "32 MB"; a megabyte is 10^6 bytes.
inline std::string megabytes(int64_t bytes) {
  TextWriter text;
  text << std::fixed << std::setprecision(bytes < 10'000'000 ? 2 : 0) << static_cast<double>(bytes) / 1e6 << " MB";
  return text.str();
}

/// Concatenates the parts with `separator` between them.
template <class Parts>
std::string str_join(const char* separator, const Parts& parts) {
  TextWriter text;
  bool is_first = true;
  for (const auto& part : parts) {
    if (!std::exchange(is_first, false)) text << separator;
    text << part;
  }
  return text.str();
}

}  // namespace fsdp
