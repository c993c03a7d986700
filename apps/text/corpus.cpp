#include "text/corpus.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace text {

std::string read_text(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text, piece(size_t{1} << 20, ' ');
  size_t zero = text.npos;
  while (file && zero == text.npos) {  // stops at the first zero byte, because /dev/zero has no end
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    const size_t before = text.size();
    text.append(piece, 0, static_cast<size_t>(file.gcount()));
    zero = text.find('\0', before);
  }
  // A folder can be opened but not read. The stream also fails at the end of a file, but then errno is not set.
  if (errno != 0) throw std::runtime_error("cannot read '" + path + "': " + std::strerror(errno));
  if (text.empty()) throw std::runtime_error("'" + path + "' is empty");
  if (zero != text.npos) {
    throw std::runtime_error("'" + path + "' is not a text file: byte " + std::to_string(zero) + " is zero");
  }
  return text;
}

Corpus split_text(std::string_view text) {
  const size_t split = text.size() * 9 / 10;
  return {std::string(text.substr(0, split)), std::string(text.substr(split))};
}

Corpus read_corpus(const std::string& path) {
  const std::filesystem::path folder(path);
  if (!std::filesystem::is_directory(folder)) return split_text(read_text(path));
  return {read_text(folder / "train.txt"), read_text(folder / "valid.txt")};
}

}  // namespace text
