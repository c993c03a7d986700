#pragma once
/// \file
/// Texts for training and validation.

#include <string>
#include <string_view>

namespace text {

struct Corpus {
  std::string training, validation;
};

/// Reads a whole file. Throws std::runtime_error, naming the file, if it cannot be read, is empty, or is not text
/// (contains a zero byte).
std::string read_text(const std::string& path);

/// Splits a text; the first nine tenths of its bytes are for training.
Corpus split_text(std::string_view text);

/// Reads a folder with train.txt and valid.txt, such as WikiText-2's, or a single file, which is split. Throws what
/// `read_text` throws.
Corpus read_corpus(const std::string& path);

}  // namespace text
