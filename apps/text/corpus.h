#pragma once
/// \file
/// Reads texts for training and validation.

#include <string>
#include <string_view>

namespace text {

struct Corpus {
  std::string training, validation;
};

/// Returns the contents of a file. Throws std::runtime_error, naming the file, if the file cannot be read, is empty, or
/// contains a zero byte and thus is not text.
std::string read_text(const std::string& path);

/// Splits a text. The first nine tenths of its bytes are for training.
Corpus split_text(std::string_view text);

/// Reads train.txt and valid.txt if `path` is a folder, such as that of WikiText-2. Reads and splits the file if `path`
/// is a file. Throws what `read_text` throws.
Corpus read_corpus(const std::string& path);

}  // namespace text
