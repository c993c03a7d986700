#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include "images/images.h"

#include <algorithm>

namespace images {

Images Images::first(int64_t count) const {
  count = std::min(count, size());
  return {pixels.narrow(0, 0, count), labels.narrow(0, 0, count)};
}

ImageDataset::ImageDataset(Images images, Options options) : images_(std::move(images)), options_(options) {}

torch::data::Example<> ImageDataset::get_batch(c10::ArrayRef<size_t> indices) {
  const std::vector<int64_t> wanted(indices.begin(), indices.end());
  const auto rows = at::tensor(wanted, at::kLong);
  auto pixels = images_.pixels.index_select(0, rows).unsqueeze(1).to(at::kFloat);
  pixels.div_(255).sub_(options_.mean).div_(options_.std);
  auto labels = images_.labels.index_select(0, rows);
  if (options_.pin_memory) return {pixels.pin_memory(), labels.pin_memory()};
  return {pixels, labels};
}

std::optional<size_t> ImageDataset::size() const { return static_cast<size_t>(images_.size()); }

}  // namespace images
