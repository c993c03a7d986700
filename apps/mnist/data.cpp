#include "data.h"

namespace mnist {
namespace {

using images::Images;
using images::MnistPart;

constexpr int64_t kDrawnForTraining = 6000, kDrawnForTest = 1000;
// Mean and standard deviation of MNIST's pixels.
constexpr double kMean = 0.1307, kStd = 0.3081;

int64_t or_else(int64_t samples, int64_t otherwise) { return samples > 0 ? samples : otherwise; }

}  // namespace

Parts load_images(const Arguments& arguments) {
  if (arguments.data.empty()) {
    const auto seed = 2 * static_cast<uint64_t>(arguments.seed);
    return {images::draw_digits(or_else(arguments.train_samples, kDrawnForTraining), seed),
            images::draw_digits(or_else(arguments.test_samples, kDrawnForTest), seed + 1)};
  }
  const Images train = images::read_mnist(arguments.data, MnistPart::kTrain);
  const Images test = images::read_mnist(arguments.data, MnistPart::kTest);
  return {train.first(or_else(arguments.train_samples, train.size())),
          test.first(or_else(arguments.test_samples, test.size()))};
}

images::ImageDataset normalised(const Images& images, c10::Device device) {
  return {images, {.mean = kMean, .std = kStd, .pin_memory = device.is_cuda()}};
}

}  // namespace mnist
