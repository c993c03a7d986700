#include <fsdp/error.h>
#include "images/images.h"

#include <filesystem>

#include "comm/core/text.h"

namespace images {
namespace {

constexpr int64_t kImageSide = 28, kClasses = 10;

template <class... Message>
void expect(bool ok, const Message&... message) {
  if (!ok) throw fsdp::Error(fsdp::str_cat(message...));
}

// Returns the path of a file that exists with or without the suffix .gz.
std::string path_of(const std::string& folder, const std::string& name) {
  expect(std::filesystem::is_directory(folder), "cannot read MNIST: there is no folder ", folder);
  const auto plain = std::filesystem::path(folder) / name;
  auto packed = plain;
  packed += ".gz";
  if (std::filesystem::exists(plain)) return plain.string();
  expect(std::filesystem::exists(packed), "cannot read MNIST: ", folder, " has neither ", name, " nor ", name, ".gz");
  return packed.string();
}

void expect_digits(const at::Tensor& labels, const std::string& path) {
  const auto* bytes = labels.const_data_ptr<uint8_t>();
  for (int64_t i = 0; i < labels.numel(); ++i)
    expect(bytes[i] < kClasses, path, " has the label ", static_cast<int>(bytes[i]), " at index ", i,
           ", expected 0 to 9");
}

}  // namespace

Images read_mnist(const std::string& folder, MnistPart part) {
  const std::string prefix = part == MnistPart::kTrain ? "train" : "t10k";
  const auto images_path = path_of(folder, prefix + "-images-idx3-ubyte");
  const auto labels_path = path_of(folder, prefix + "-labels-idx1-ubyte");
  const auto pixels = read_idx(images_path), labels = read_idx(labels_path);
  expect(pixels.dim() == 3 && pixels.size(1) == kImageSide && pixels.size(2) == kImageSide, images_path,
         ": expected images of 28 x 28, found sizes ", pixels.sizes());
  expect(labels.dim() == 1, labels_path, ": expected one label for each image, found sizes ", labels.sizes());
  expect(labels.size(0) == pixels.size(0), folder, " has ", pixels.size(0), " images but ", labels.size(0),
         " labels, in the files that begin with ", prefix);
  expect(labels.size(0) > 0, images_path, " has no images");
  expect_digits(labels, labels_path);
  return {pixels, labels.to(at::kLong)};
}

}  // namespace images
