#pragma once
/// \file
/// Text that is the same in every process, whatever std::locale::global was told there.
///
/// Note [Numbers in text]
/// A stream takes on the locale that is global when it is made, and c10::str and c10::Join write to such a stream: by
/// French rules a thousand is "1 000". Ranks compare texts, look for keys that are made of them and read numbers back,
/// and other programs read files and errors. So the library writes text with what is here; std::to_string of an integer
/// and std::from_chars heed no locale. tools/check_layers.py finds the others.

#include <cstdint>
#include <iomanip>
#include <locale>
#include <sstream>
#include <string>
#include <utility>

namespace fsdp {

/// As std::ostringstream. See Note [Numbers in text].
class TextWriter : public std::ostringstream {
 public:
  TextWriter() { imbue(std::locale::classic()); }
};

/// As std::istringstream.
class TextReader : public std::istringstream {
 public:
  explicit TextReader(const std::string& text) : std::istringstream(text) { imbue(std::locale::classic()); }
};

/// The parts one behind the other, as operator<< writes them.
template <class... Parts>
std::string str_cat(const Parts&... parts) {
  TextWriter text;
  static_cast<void>((text << ... << parts));
  return text.str();
}

/// "3.21 MB", from 10 MB on "32 MB"; a megabyte is 10^6 bytes.
inline std::string megabytes(int64_t bytes) {
  TextWriter text;
  text << std::fixed << std::setprecision(bytes < 10'000'000 ? 2 : 0) << static_cast<double>(bytes) / 1e6 << " MB";
  return text.str();
}

/// The parts with `separator` between them.
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
