#pragma once
/// \file
/// Texts to train on and to validate with.

#include <string>
#include <string_view>

namespace fsdp::text {

struct Corpus {
  std::string training, validation;
};

/// The whole file. Throws std::runtime_error naming it if it cannot be read, is empty, or is no text (has a zero byte).
std::string read_text(const std::string& path);

/// The first nine tenths of the bytes are for training.
Corpus split_text(std::string_view text);

/// A folder with train.txt and valid.txt, such as WikiText-2's, or a file, which is split. Throws what `read_text`
/// does.
Corpus read_corpus(const std::string& path);

}  // namespace fsdp::text
