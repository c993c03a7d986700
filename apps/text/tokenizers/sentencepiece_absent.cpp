// CMake compiles this file instead of sentencepiece.cpp if the library SentencePiece is not installed.
#include <stdexcept>

#include "text/tokenizers/sentencepiece.h"

namespace text {
namespace {

[[noreturn]] void throw_absent() {
  throw std::runtime_error(
      "this program was built without SentencePiece: install its headers (Debian: libsentencepiece-dev), configure and "
      "build again, or choose a different tokenizer");
}

}  // namespace

struct SentencePiece::Processor {};

bool has_sentencepiece() { return false; }
std::string train_sentencepiece(std::string_view, int64_t) { throw_absent(); }
SentencePiece::SentencePiece(std::string_view) { throw_absent(); }
SentencePiece::~SentencePiece() = default;
int64_t SentencePiece::vocabulary_size() const { throw_absent(); }
Tokens SentencePiece::encode(std::string_view) const { throw_absent(); }
std::string SentencePiece::decode(std::span<const int64_t>) const { throw_absent(); }

}  // namespace text
