#include "text.h"

#include <torch/types.h>

#include <bitset>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace gpt {
namespace {

size_t code(char character) { return static_cast<unsigned char>(character); }

}  // namespace

Text::Text(std::string_view characters) {
  std::bitset<256> present;
  for (const char character : characters) present.set(code(character));
  for (size_t c = 0; c < present.size(); ++c) {
    if (!present[c]) continue;
    numbers_[c] = static_cast<int64_t>(vocabulary_.size());
    vocabulary_ += static_cast<char>(c);
  }
  const auto length = static_cast<int64_t>(characters.size());
  const auto numbers = torch::empty(length, torch::kInt64);
  auto* out = numbers.data_ptr<int64_t>();
  for (const char character : characters) *out++ = numbers_[code(character)];
  const int64_t split = length * 9 / 10;
  training_ = numbers.slice(0, 0, split);
  validation_ = numbers.slice(0, split);
}

int64_t Text::encode(char character) const { return numbers_[code(character)]; }

std::string read_file(const std::string& path) {
  const std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  // A folder opens, and only fails to be read.
  if (file) content << file.rdbuf();
  if (!file || !content) throw std::runtime_error("cannot read '" + path + "': " + std::strerror(errno));
  return content.str();
}

}  // namespace gpt
