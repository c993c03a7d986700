#pragma once
/// \file
/// A text as numbers: its characters, in the order of their codes, are the vocabulary.

#include <ATen/core/Tensor.h>

#include <array>
#include <string>
#include <string_view>

namespace gpt {

/// The first nine tenths are for training, the rest for validation. Characters are bytes, so any file will do.
class Text {
 public:
  explicit Text(std::string_view characters);

  int64_t vocabulary_size() const { return static_cast<int64_t>(vocabulary_.size()); }
  /// Flat, int64.
  const at::Tensor& training() const { return training_; }
  const at::Tensor& validation() const { return validation_; }

  /// The number of a character, or of the first one of the vocabulary if the text does not have it.
  int64_t encode(char character) const;
  char decode(int64_t number) const { return vocabulary_.at(static_cast<size_t>(number)); }

 private:
  std::string vocabulary_;
  std::array<int64_t, 256> numbers_{};
  at::Tensor training_, validation_;
};

/// The whole file. Throws std::runtime_error naming it if it cannot be read.
std::string read_file(const std::string& path);

}  // namespace gpt
