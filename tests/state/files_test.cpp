// Tests that safetensors files are written completely or not at all, and read in parts.

#include <gmock/gmock.h>

#include <numeric>

#include "state/files.h"
#include "state/format/format_error.h"
#include "state/format/safetensors.h"

namespace fsdp::state {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(StateFiles, AreReadInPartsThatAreChecked) {
  const TemporaryFolder folder;
  // The file has a little more than three chunks, and is written in pieces that do not end where the chunks do.
  std::vector<float> values(3 * kChunkBytes / sizeof(float) + 1000);
  std::iota(values.begin(), values.end(), 0.F);
  const auto bytes = std::as_bytes(std::span(values));
  SafetensorsWriter writer(
      folder / "a", {{"flag", Dtype::kBool, {1}}, {"w", Dtype::kFloat32, {static_cast<int64_t>(values.size())}}}, {});
  ASSERT_EQ(writer.entries()[0].name, "w");
  writer.write(bytes.first(700'001));
  writer.write(bytes.subspan(700'001));
  const std::byte yes{1};
  writer.write({&yes, 1});
  const auto written = writer.finish();
  EXPECT_EQ(written.checksums.at("w").size(), 4u);

  const SafetensorsFile file(folder / "a");
  EXPECT_EQ(file.bytes(), written.bytes);
  EXPECT_EQ(file.header_checksum(), written.header_checksum);
  std::vector<float> some(400'000);
  for (const size_t first : {0u, 1u, 262'143u, 262'144u, 300'000u, 387'432u}) {
    file.read_checked(file.entry("w"), written.checksums.at("w"), first * sizeof(float),
                      std::as_writable_bytes(std::span(some)));
    EXPECT_EQ(some[0], static_cast<float>(first));
    EXPECT_EQ(some.back(), static_cast<float>(first + some.size() - 1));
  }
  const auto error = text_of_error([&] {
    file.read_checked(file.entry("w"), written.checksums.at("w"), (values.size() - 1) * 4,
                      std::as_writable_bytes(std::span(some)));
  });
  EXPECT_THAT(error, HasSubstr("entry 'w' has no checksum for byte")) << "it ends before";
}

TEST(StateFiles, HaveTheirNameWhenTheyAreCompleteAndSayWhatIsWrongWithAPath) {
  const TemporaryFolder folder;
  {
    SafetensorsWriter writer(folder / "a", {{"w", Dtype::kUInt8, {4}}}, {});
    EXPECT_THAT(text_of_error([&] { writer.finish(); }), HasSubstr("entry 'w' was not written completely"));
    EXPECT_FALSE(std::filesystem::exists(folder / "a"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "what was written until then is gone";
  SafetensorsWriter(folder / "none", {}, {{"format", "pt"}}).finish();
  EXPECT_TRUE(SafetensorsFile(folder / "none").header().entries.empty());
  SafetensorsWriter(folder / "empty", {{"e", Dtype::kInt64, {0, 4}}}, {}).finish();
  EXPECT_EQ(SafetensorsFile(folder / "empty").entry("e").sizes, (std::vector<int64_t>{0, 4}));

  EXPECT_THAT(text_of_error([&] { SafetensorsFile(folder / "a"); }),
              HasSubstr("a: cannot open the file: No such file"));
  EXPECT_THAT(text_of_error([&] { SafetensorsFile{folder.path()}; }), HasSubstr("expected a regular file"));
  EXPECT_THAT(text_of_error([&] { SafetensorsWriter(folder / "no/a", {}, {}); }), HasSubstr("Check the path"));
  EXPECT_THAT(text_of_error([&] { write_text("/dev/full/x", ""); }), HasSubstr("/dev/full/x: cannot create the file"));
}

TEST(StateFiles, ThatShrinkWhileTheyAreReadAreAnError) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "a", {{"w", Dtype::kUInt8, {4}}}, {});
  writer.write(std::as_bytes(std::span("1234", 4)));
  writer.finish();
  const SafetensorsFile file(folder / "a");
  std::filesystem::resize_file(folder / "a", file.bytes() - 1);
  std::byte out[4];
  EXPECT_THAT(text_of_error([&] { file.read(file.entry("w"), 0, out); }), HasSubstr("found the end of the file"));
}

TEST(StateFiles, ChecksumsAreTheSameInPiecesOfAnySize) {
  const auto values = floats(kChunkBytes / 2, 0);
  const auto bytes = std::as_bytes(std::span(values));
  ChunkChecksums whole, pieces;
  whole.add(bytes);
  for (size_t at = 0; at < bytes.size(); at += 99'991)
    pieces.add(bytes.subspan(at, std::min<size_t>(99'991, bytes.size() - at)));
  const auto checksums = whole.take();
  EXPECT_THAT(checksums, ElementsAre(checksum_of(bytes.first(kChunkBytes)), checksum_of(bytes.subspan(kChunkBytes))));
  EXPECT_EQ(checksums, pieces.take());
  EXPECT_EQ(checksum_in(hex_of(checksums[0])), checksums[0]);
  EXPECT_THAT((std::vector{checksum_in("12"), checksum_in("00000000000000AB"), checksum_in("000000000000000x")}),
              Each(std::nullopt));
}

}  // namespace
}  // namespace fsdp::state
