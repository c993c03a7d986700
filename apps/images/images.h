#pragma once
/// \file
/// Data sets of small grey images: MNIST's files, and digits that the program draws.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <cstdint>
#include <optional>
#include <string>

namespace images {

/// Grey images with labels.
struct Images {
  at::Tensor pixels;  ///< [images, rows, columns], uint8: 0 is the background
  at::Tensor labels;  ///< [images], int64

  /// Returns the number of images.
  int64_t size() const { return labels.size(0); }
  /// Returns the first `count` images, or all if there are fewer.
  Images first(int64_t count) const;
};

/// Reads an array of bytes in MNIST's idx format: the bytes 0, 0, 8 and the number of dimensions (1 to 8), each
/// dimension as a big-endian 32-bit number, then the data. The function recognises gzip files by their content. Returns
/// a uint8 tensor. Throws fsdp::Error, which names the file, if the file cannot be read, has another format, or is
/// shorter or longer than its header says.
at::Tensor read_idx(const std::string& path);

/// One of MNIST's two parts.
enum class MnistPart {
  kTrain,  ///< the files train-*
  kTest,   ///< the files t10k-*
};

/// Reads MNIST from a folder with the files train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte
/// and t10k-labels-idx1-ubyte, each plain or with .gz. Throws fsdp::Error, which names the file, as read_idx does, and
/// also if there are no images, images are not 28 x 28, labels are not 0 to 9, or the numbers of images and labels
/// differ.
///
///     auto train = images::read_mnist("data/mnist", images::MnistPart::kTrain);
Images read_mnist(const std::string& folder, MnistPart part);

/// Draws digits of MNIST's size from strokes that are randomly turned, slanted, moved and thickened, for programs
/// without data files. Equal arguments give equal images. The digits are easier to classify than MNIST's.
Images draw_digits(int64_t count, uint64_t seed);

/// Data set of images for LibTorch's data loader. The data of a batch are (pixel / 255 - mean) / std in fp32, of shape
/// [images, 1, rows, columns]; the targets are int64, of shape [images]. Thread-safe.
///
///     images::ImageDataset dataset(images, {.mean = 0.1307, .std = 0.3081});
///     auto batches = torch::data::make_data_loader(dataset, sampler, torch::data::DataLoaderOptions(64).workers(2));
class ImageDataset : public torch::data::datasets::BatchDataset<ImageDataset, torch::data::Example<>> {
 public:
  /// Options of ImageDataset: normalisation and memory of batches.
  struct Options {
    double mean = 0;  ///< number subtracted from pixel / 255
    double std = 1;   ///< divisor of the difference
    /// True if batches are in pinned memory, for asynchronous copies to a CUDA device.
    bool pin_memory = false;
  };
  /// Makes a data set that shares the images' memory.
  ImageDataset(Images images, Options options);

  /// Returns the images with these indices, in this order.
  torch::data::Example<> get_batch(c10::ArrayRef<size_t> indices) override;
  /// Returns the number of images.
  std::optional<size_t> size() const override;

 private:
  Images images_;
  Options options_;
};

}  // namespace images
