#pragma once
/// \file
/// Data sets of small grey images: MNIST's files, digits that the program draws itself.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <cstdint>
#include <optional>
#include <string>

#pragma GCC visibility push(default)
namespace fsdp::data {

/// \addtogroup data
/// \{

/// Images and what they show.
struct Images {
  at::Tensor pixels;  ///< [images, rows, columns], uint8: 0 is the background
  at::Tensor labels;  ///< [images], int64

  /// How many there are.
  int64_t size() const { return labels.size(0); }
  /// The first `count` of them, or all if there are fewer.
  Images first(int64_t count) const;
};

/// An array of bytes in MNIST's format: bytes 0 0 8 and the number of dimensions, each dimension as a big-endian 32-bit
/// number, then the bytes. gzip is recognised by the content. Returns uint8 of the file's sizes. Throws Error, in one
/// sentence that names the file, if it cannot be read, is no such file, or is shorter or longer than it says.
at::Tensor read_idx(const std::string& path);

/// Which of MNIST's two sets.
enum class MnistPart {
  kTrain,  ///< the files train-*
  kTest,   ///< the files t10k-*
};

/// MNIST from the folder that holds train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and
/// t10k-labels-idx1-ubyte, each of them as it is or with .gz. Throws Error, in one sentence that names the file, as
/// read_idx does, and if images are not 28 x 28, labels are not 0 to 9, or their numbers differ.
///
///     auto train = fsdp::data::read_mnist("data/mnist", fsdp::data::MnistPart::kTrain);
Images read_mnist(const std::string& folder, MnistPart part);

/// Digits in MNIST's sizes, drawn with strokes that are turned, slanted, moved and thickened at random,
/// the same ones for the same arguments. Enough for a program to run and learn without files; easier than MNIST.
Images draw_digits(int64_t count, uint64_t seed);

/// Images as LibTorch's data loader wants them, a whole batch at a time: data [images, 1, rows, columns], fp32, as
/// (pixel / 255 - mean) / std, and targets [images], int64. Thread safety: all of it.
///
///     fsdp::data::ImageDataset dataset(images, {.mean = 0.1307, .std = 0.3081});
///     auto batches = torch::data::make_data_loader(dataset, sampler, torch::data::DataLoaderOptions(64).workers(2));
class ImageDataset : public torch::data::datasets::BatchDataset<ImageDataset, torch::data::Example<>> {
 public:
  /// How pixels become data.
  struct Options {
    double mean = 0;  ///< subtracted from pixel / 255
    double std = 1;   ///< by which the difference is divided
    /// Batches lie in pinned memory, from which they can be copied to a CUDA device while it computes.
    bool pin_memory = false;
  };
  /// Of these images, which it shares.
  ImageDataset(Images images, Options options);

  /// The images with these numbers, in this order.
  torch::data::Example<> get_batch(c10::ArrayRef<size_t> indices) override;
  /// How many images there are.
  std::optional<size_t> size() const override;

 private:
  Images images_;
  Options options_;
};

/// \}

}  // namespace fsdp::data
#pragma GCC visibility pop
