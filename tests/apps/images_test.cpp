// Tests of reading image files, also corrupt ones, and of drawing images.

#include "images/images.h"
#include <fsdp/error.h>
#include <gmock/gmock.h>
#include <torch/torch.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>

#include "support/shared_data.h"

namespace fsdp::test {
namespace {

using images::Images;
using images::MnistPart;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::string big_endian(uint32_t number) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift & 0xff);
  return bytes;
}

std::string idx(const std::vector<uint32_t>& sizes, const std::string& content) {
  std::string bytes{0, 0, 8, static_cast<char>(sizes.size())};
  for (const auto size : sizes) bytes += big_endian(size);
  return bytes + content;
}

std::string packed(const std::string& bytes) {
  const std::string path = testing::TempDir() + "packed";
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class TrainImages : public testing::Test {
 protected:
  TrainImages() { std::filesystem::create_directory(folder_); }
  ~TrainImages() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  // Writes training images with these labels.
  void write_mnist(const std::string& labels, int64_t images = 3, uint32_t side = 28) const {
    const auto bytes = static_cast<size_t>(images) * side * side;
    write("train-images-idx3-ubyte", idx({static_cast<uint32_t>(images), side, side}, std::string(bytes, 'x')));
    write("train-labels-idx1-ubyte.gz", packed(idx({static_cast<uint32_t>(labels.size())}, labels)));
  }

  const std::string folder_ = testing::TempDir() + "train_images_" + std::to_string(getpid());
};

// Returns the message of the error of `read`, and expects one sentence.
template <class Read>
std::string complaint(const Read& read) {
  try {
    read();
  } catch (const Error& error) {
    const std::string message = error.what_without_backtrace();
    EXPECT_THAT(message, Not(HasSubstr("\n")));
    return message;
  }
  return "nothing was wrong";
}

TEST_F(TrainImages, IdxIsReadPackedAndUnpacked) {
  const auto bytes = idx({2, 3}, "abcdef");
  for (const auto& file : {write("plain", bytes), write("gz", packed(bytes))}) {
    const auto array = images::read_idx(file);
    EXPECT_EQ(array.scalar_type(), torch::kByte);
    EXPECT_TRUE(torch::equal(array, torch::arange('a', 'g').to(torch::kByte).view({2, 3})));
  }
  EXPECT_EQ(images::read_idx(write("none", idx({0, 28, 28}, ""))).sizes(), (std::vector<int64_t>{0, 28, 28}));
}

TEST_F(TrainImages, IdxThatIsWrongIsNamed) {
  const auto plain = idx({2, 3}, "abcdef"), gz = packed(idx({100, 100}, std::string(10000, 'y')));
  auto broken = gz;
  broken[gz.size() / 2] = static_cast<char>(gz[gz.size() / 2] ^ 0x55);
  const auto is_cut_off = testing::AnyOf(HasSubstr("is cut off"), HasSubstr("is not an idx file"));
  std::vector<std::pair<std::string, testing::Matcher<std::string>>> wrong{
      {path("nowhere"), AllOf(StartsWith("cannot read " + path("nowhere")), HasSubstr("No such file"))},
      {write("empty", ""), HasSubstr("is empty")},
      {folder_, AllOf(HasSubstr(folder_), HasSubstr("directory"))},
      {write("text", "once upon a time"), HasSubstr("is not an idx file of bytes")},
      {write("floats", std::string{0, 0, 13, 1} + big_endian(1) + "abcd"), HasSubstr("is not an idx file of bytes")},
      {write("long", idx({2, 3}, "abcdefg")), HasSubstr("is too long")},
      // No memory is allocated for sizes whose product exceeds 64 bits.
      {write("huge", idx({~0U, ~0U, ~0U}, "abc")), HasSubstr("is cut off")},
      {write("broken.gz", broken), HasSubstr("broken.gz")}};
  for (const size_t length : {1UL, 3UL, 4UL, 7UL, 11UL, 12UL, 17UL})
    wrong.emplace_back(write(c10::str("short", length), plain.substr(0, length)), is_cut_off);
  for (const size_t length : {15UL, gz.size() / 2, gz.size() - 1})
    wrong.emplace_back(write(c10::str("short", length, ".gz"), gz.substr(0, length)), HasSubstr("is cut off"));
  for (const auto& [file, says] : wrong) EXPECT_THAT(complaint([&, f = file] { images::read_idx(f); }), says) << file;
}

TEST_F(TrainImages, MnistIsReadFromItsFolder) {
  write_mnist({7, 0, 9});
  const auto train = images::read_mnist(folder_, MnistPart::kTrain);
  EXPECT_EQ(train.size(), 3);
  EXPECT_EQ(train.pixels.sizes(), (std::vector<int64_t>{3, 28, 28}));
  EXPECT_TRUE(torch::equal(train.labels, torch::tensor({7, 0, 9})));
  EXPECT_EQ(train.first(2).size(), 2);
  EXPECT_EQ(train.first(9).size(), 3);
}

TEST_F(TrainImages, MnistThatIsMissingOrDoesNotFitIsNamed) {
  const auto complaint_now = [&](const std::string& folder) {
    return complaint([&] { images::read_mnist(folder, MnistPart::kTrain); });
  };
  EXPECT_THAT(complaint_now(path("nowhere")), HasSubstr("there is no folder " + path("nowhere")));
  EXPECT_THAT(complaint_now(folder_), HasSubstr("has neither train-images-idx3-ubyte nor train-images-idx3-ubyte.gz"));
  write_mnist({7, 0, 10});
  EXPECT_THAT(complaint_now(folder_), HasSubstr("has the label 10 at index 2, expected 0 to 9"));
  write_mnist({7, 0});
  EXPECT_THAT(complaint_now(folder_), HasSubstr("has 3 images but 2 labels"));
  write_mnist({7, 0, 9}, 3, 27);
  EXPECT_THAT(complaint_now(folder_), HasSubstr("expected images of 28 x 28"));
  write_mnist({}, 0);
  EXPECT_THAT(complaint_now(folder_), HasSubstr("has no images"));
}

TEST_F(TrainImages, MnistItselfHasItsKnownSums) {
  FSDP_NEEDS_SHARED_DATA("mnist");
  const auto mnist = shared_data("mnist");
  const auto train = images::read_mnist(mnist, MnistPart::kTrain), test = images::read_mnist(mnist, MnistPart::kTest);
  EXPECT_EQ(train.size(), 60000);
  EXPECT_EQ(test.size(), 10000);
  // The tutorial normalises with these numbers.
  const auto pixels = train.pixels.to(torch::kDouble).div_(255);
  EXPECT_NEAR(pixels.mean().item<double>(), 0.1307, 5e-5);
  EXPECT_NEAR(pixels.std().item<double>(), 0.3081, 5e-5);
  EXPECT_TRUE(torch::equal(train.labels.slice(0, 0, 5), torch::tensor({5, 0, 4, 1, 9})));
}

TEST_F(TrainImages, DrawnDigitsAreAllTenTheSameForOneSeedAndDifferentForAnother) {
  const auto digits = images::draw_digits(200, 1);
  EXPECT_EQ(digits.pixels.sizes(), (std::vector<int64_t>{200, 28, 28}));
  EXPECT_EQ(std::get<0>(torch::_unique(digits.labels)).numel(), 10);
  EXPECT_TRUE(torch::equal(digits.pixels, images::draw_digits(200, 1).pixels));
  EXPECT_FALSE(torch::equal(digits.pixels, images::draw_digits(200, 2).pixels));
  // Each image has a stroke and a margin.
  const auto drawn = digits.pixels.to(torch::kFloat).flatten(1).gt(127).sum(1);
  EXPECT_GT(drawn.min().item<int64_t>(), 15);
  EXPECT_LT(drawn.max().item<int64_t>(), 28 * 28 / 2);
}

TEST_F(TrainImages, ABatchIsNormalisedAndInTheOrderAskedFor) {
  const Images images{torch::tensor({0, 51, 102, 255}, torch::kByte).view({4, 1, 1}), torch::tensor({3, 1, 4, 1})};
  images::ImageDataset dataset(images, {.mean = 0.2, .std = 0.5});
  EXPECT_EQ(dataset.size(), 4U);
  const std::vector<size_t> wanted{3, 1};
  const auto batch = dataset.get_batch(wanted);
  EXPECT_TRUE(torch::allclose(batch.data, torch::tensor({1.6, 0.0}).view({2, 1, 1, 1}).to(torch::kFloat), 1e-6, 1e-6));
  EXPECT_TRUE(torch::equal(batch.target, torch::tensor({1, 1})));
}

}  // namespace
}  // namespace fsdp::test
