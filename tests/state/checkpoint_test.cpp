// Tests of checkpoints: rows that are read from their files, manifests, and errors of damaged checkpoints.

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>

#include "state/files.h"
#include "state/format/checkpoint_reader.h"
#include "state/format/checksum.h"
#include "state/format/format_error.h"
#include "support/saved_run.h"

namespace fsdp::state {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kFirst[] = "model-00000-of-00002.safetensors", kSecond[] = "model-00001-of-00002.safetensors";

std::vector<float> rows_of(CheckpointReader& reader, const std::string& name, int64_t first, int64_t rows) {
  const auto& tensor = reader.manifest().model.at(name);
  const auto row = tensor.numel() / tensor.sizes[0];
  std::vector<float> values(static_cast<size_t>(rows * row));
  reader.read(name, tensor, {first * row, rows * row}, std::as_writable_bytes(std::span(values)));
  return values;
}

TEST(StateCheckpoint, RowsAreReadFromWhicheverFileHasThem) {
  const TemporaryFolder folder;
  write_small_checkpoint(folder.path(), 1);
  CheckpointReader reader(folder.path());
  for (int64_t first = 0; first <= 5; ++first)
    for (int64_t rows = 0; rows + first <= 5; ++rows)
      EXPECT_EQ(rows_of(reader, "weight", first, rows),
                floats(static_cast<size_t>(3 * rows), 100.F + 3.F * static_cast<float>(first)));
  EXPECT_THAT(text_of_error([&] { rows_of(reader, "weight", 4, 2); }), HasSubstr("tensor 'weight' of sizes [5, 3]"));
  EXPECT_EQ(reader.manifest().step, 1);
  EXPECT_EQ(reader.manifest().extra, R"({"epoch":3})");
}

TEST(StateCheckpoint, OnlyTheFilesOfWantedRowsAreRead) {
  const TemporaryFolder folder;
  write_small_checkpoint(folder.path(), 1);
  std::filesystem::remove(folder / "step-000000000001/" + kSecond);
  CheckpointReader reader(folder.path());
  EXPECT_EQ(rows_of(reader, "weight", 0, 3), floats(9, 100));
  EXPECT_THAT(text_of_error([&] { rows_of(reader, "weight", 2, 2); }), HasSubstr(kSecond));
}

// The contents of files by path, or nullopt if the file is gone.
using Files = std::map<std::string, std::optional<std::string>>;

Files files_below(const std::string& folder) {
  Files files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files[entry.path()] = bytes_in_file(entry.path());
  return files;
}

void carry_out(const Files& changes) {
  for (const auto& [path, bytes] : changes) {
    if (bytes)
      put_bytes(path, *bytes);
    else
      std::filesystem::remove(path);
  }
}

// Draws a change of one or two files of a checkpoint. Returns its description and the changed files.
std::pair<std::string, Files> draw_damage(const Files& files, const std::string& checkpoint, std::mt19937& random) {
  std::vector<std::string> own;
  for (const auto& [path, bytes] : files)
    if (path.starts_with(checkpoint)) own.push_back(path);
  const auto& path = own[random() % own.size()];
  const auto& [other, others_bytes] = *std::next(files.begin(), static_cast<ptrdiff_t>(random() % files.size()));
  auto bytes = *files.at(path);
  const auto at = random() % bytes.size();
  switch (random() % 9) {
    case 0:
      return {path + " cut at " + std::to_string(at), {{path, bytes.substr(0, at)}}};
    case 1:
      return {path + " grown", {{path, bytes + std::string(1 + random() % 9, static_cast<char>(random()))}}};
    case 2:
      return {path + " changed places with " + other, {{path, others_bytes}, {other, bytes}}};
    case 3:
      return {path + " copied from " + other, {{path, others_bytes}}};
    case 4:
      return {path + " removed", {{path, std::nullopt}}};
    default:
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
      return {path + ": another bit at " + std::to_string(at), {{path, bytes}}};
  }
}

// Reading finds the damage as well, unless it does not read what was changed.
TEST(StateCheckpoint, DamageAnywhereIsFound) {
  const TemporaryFolder folder;
  write_small_checkpoint(folder.path(), 1);
  write_small_checkpoint(folder.path(), 2);
  const auto checkpoint = folder / "step-000000000002";
  ASSERT_THAT(problems_of(checkpoint), IsEmpty());
  const auto files = files_below(folder.path());
  ASSERT_THAT(files, SizeIs(2 * 3 + 2));
  std::mt19937 random(7);
  int found = 0;
  const int number = test::trials(400);
  for (int trial = 0; trial < number; ++trial) {
    const auto [what, changed] = draw_damage(files, checkpoint, random);
    SCOPED_TRACE(what);
    carry_out(changed);
    const bool is_damaged = std::ranges::any_of(changed, [&](const auto& file) {
      return file.first.starts_with(checkpoint) && files.at(file.first) != file.second;
    });
    EXPECT_EQ(!problems_of(checkpoint).empty(), is_damaged);
    const auto error = text_of_error([&] {
      CheckpointReader reader(checkpoint);
      EXPECT_EQ(rows_of(reader, "weight", 0, 5), floats(15, 200));
      EXPECT_EQ(rows_of(reader, "bias", 0, 2), floats(2, -200));
      EXPECT_EQ(reader.manifest().step, 2);
    });
    EXPECT_THAT(error, AnyOf(IsEmpty(), HasSubstr(folder.path()))) << "says where";
    found += error.empty() ? 0 : 1;
    for (const auto& [path, bytes] : changed) put_bytes(path, *files.at(path));
  }
  EXPECT_GT(found, number / 2) << "trials that nobody notices show nothing";
}

TEST(StateCheckpoint, ManifestsNameFilesOfTheirFolderOnly) {
  for (const auto* name : {"../a", "/etc/passwd", "", ".", "..", ".a", "a/b", "a\\b"})
    EXPECT_FALSE(is_plain_name(name)) << name;
  EXPECT_FALSE(is_plain_name(std::string_view("a\0b", 3)));
  Manifest manifest;
  manifest.files["../other.safetensors"] = {};
  EXPECT_THAT(text_of_error([&] { parse_manifest(manifest_text(manifest), "manifest.json"); }),
              HasSubstr("expected names of files in the same folder, found '../other.safetensors'"));
}

TEST(StateCheckpoint, ManifestsHaveEachElementOnce) {
  const auto error_of_parts = [](const std::vector<int64_t>& sizes, const std::vector<TensorPart>& parts) {
    Manifest manifest;
    manifest.files["f"] = {};
    manifest.model["w"] = {Dtype::kFloat32, sizes, parts};
    return text_of_error([&] { parse_manifest(manifest_text(manifest), "manifest.json"); });
  };
  EXPECT_THAT(error_of_parts({4}, {{"f", {0}, {3}, {1}}, {"f", {3}, {1}, {1}}}), IsEmpty());
  EXPECT_THAT(error_of_parts({4}, {{"f", {0}, {3}, {1}}}),
              HasSubstr("manifest.json: tensor 'w' of sizes [4]: the elements from 3 on are missing"));
  EXPECT_THAT(error_of_parts({4}, {{"f", {0}, {3}, {1}}, {"f", {2}, {2}, {1}}}),
              HasSubstr("expected a part with consecutive elements from 3 on, found one of sizes [2] at [2]"));
  EXPECT_THAT(error_of_parts({4}, {{"f", {0}, {0}, {}}, {"f", {0}, {4}, {1}}}), HasSubstr("sizes [0] at [0]"));
  EXPECT_THAT(error_of_parts({4}, {{"f", {0}, {5}, {1}}}), HasSubstr("found one of sizes [5] at [0]"));
  EXPECT_THAT(error_of_parts({4}, {{"f", {0}, {4}, {}}}), HasSubstr("a checksum for each MiB"));
  EXPECT_THAT(error_of_parts({4}, {{"g", {0}, {4}, {1}}}), HasSubstr("'g' is not listed"));
  // The boxes are two and a half rows, and the rest.
  EXPECT_THAT(error_of_parts({1, 4, 2}, {{"f", {0, 0, 0}, {1, 2, 2}, {1}},
                                         {"f", {0, 2, 0}, {1, 1, 1}, {1}},
                                         {"f", {0, 2, 1}, {1, 1, 1}, {1}},
                                         {"f", {0, 3, 0}, {1, 1, 2}, {1}}}),
              IsEmpty());
  EXPECT_THAT(error_of_parts({2, 2}, {{"f", {0, 0}, {2, 1}, {1}}, {"f", {0, 1}, {2, 1}, {1}}}),
              HasSubstr("expected a part with consecutive elements from 0 on, found one of sizes [2, 1] at [0, 0]"));
  EXPECT_THAT(error_of_parts({1, 4}, {{"f", {0, 3}, {1, 2}, {1}}}), HasSubstr("found one of sizes [1, 2] at [0, 3]"));
}

TEST(StateCheckpoint, ManifestsCountRowsOfDim0UnlessAPartHasOthers) {
  Manifest manifest;
  manifest.files["f"] = {};
  manifest.model["w"] = {Dtype::kFloat32, {3, 2}, {{"f", {0, 0}, {1, 2}, {1}}, {"f", {1, 0}, {2, 2}, {1}}}};
  const auto of_rows = manifest_text(manifest);
  EXPECT_THAT(of_rows, AllOf(HasSubstr("\"version\": 1"), HasSubstr("\"first_row\": 1,\n     \"rows\": 2")));
  manifest.model["v"] = {Dtype::kFloat32, {1, 2}, {{"f", {0, 0}, {1, 1}, {1}}, {"f", {0, 1}, {1, 1}, {1}}}};
  const auto with_boxes = manifest_text(manifest);
  EXPECT_THAT(with_boxes, AllOf(HasSubstr("\"version\": 2"), HasSubstr("\"first_row\": 1,\n     \"rows\": 2")));
  const auto parsed = parse_manifest(with_boxes, "manifest.json");
  EXPECT_EQ(parsed.model.at("w").parts[1].sizes, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(parsed.model.at("v").parts[1].offsets, (std::vector<int64_t>{0, 1}));
}

TEST(StateCheckpoint, ManifestsAreMadeOfWhatEachRankWrote) {
  Manifest first{.step = 4, .optimizer = R"({"state": {"w": {"step": 1, "none": null}}})"},
      second{.optimizer = R"({"state": {"b": {"step": 2}}})"};
  first.files["f"] = second.files["g"] = {};
  first.model["w"] = {Dtype::kFloat32, {4}, {{"f", {3}, {1}, {1}}}};
  second.model["w"] = {Dtype::kFloat32, {4}, {{"g", {0}, {3}, {1}}}};
  second.training["w"] = {Dtype::kFloat32, {1}, {{"g", {0}, {1}, {1}}}};
  EXPECT_THAT(text_of_error([&] { parse_manifest(manifest_text(first), "whole"); }),
              HasSubstr("consecutive elements from 0 on"));
  JoinedManifest joined;
  for (const auto* part : {&first, &second}) joined.add(manifest_text(*part), "part");
  const auto all = parse_manifest(manifest_text(joined.take()), "whole");
  EXPECT_EQ(all.step, 4);
  EXPECT_EQ(all.model.at("w").parts[0].file, "g");
  EXPECT_EQ(all.training.at("w").parts.size(), 1u);
  EXPECT_EQ(all.optimizer, R"({"state":{"w":{"step":1,"none":null},"b":{"step":2}}})");
  second.model["w"].sizes = {5};
  joined = {};
  joined.add(manifest_text(first), "part");
  EXPECT_THAT(text_of_error([&] { joined.add(manifest_text(second), "part"); }),
              HasSubstr("tensor 'w': expected the same dtype and sizes on every rank, found F32 [4] and F32 [5]"));
}

std::string lists(size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

// Returns the text with its correct checksum.
std::string signed_text(std::string text) {
  const std::string begin = "{\n \"checksum\": \"", digits = "0000000000000000";
  text.replace(begin.size(), 16, digits);
  return text.replace(begin.size(), 16, hex_of(checksum_of(std::as_bytes(std::span(text)))));
}

TEST(StateCheckpoint, JsonThatIsNestedWithoutEndIsRefused) {
  const Manifest deep{.extra = lists(100), .states = {{"a", lists(100)}}};
  EXPECT_EQ(parse_manifest(manifest_text(deep), "whole").extra, deep.extra);
  EXPECT_EQ(parse_manifest(manifest_text(deep), "whole").states, deep.states);
  for (const auto& manifest : {Manifest{.extra = lists(101)}, Manifest{.states = {{"a", lists(1'000'000)}}}})
    EXPECT_THAT(text_of_error([&] { manifest_text(manifest); }), HasSubstr("at most 100 levels of nested lists"));
  auto text = manifest_text({});
  text.replace(text.find("\"extra\": {}"), 11, "\"extra\": " + lists(1'000'000));
  EXPECT_THAT(text_of_error([&] { parse_manifest(signed_text(text), "whole"); }),
              HasSubstr("whole: expected JSON of at most 102 levels of nested lists"));
}

// A tensor without bytes may have any number of rows.
TEST(StateCheckpoint, RowsWithoutBytesAreNotCounted) {
  const TemporaryFolder folder;
  const FolderLock lock(folder.path());
  const auto path = begin_step(folder.path(), 1, lock);
  const auto rows = int64_t{1} << 60;
  SafetensorsWriter writer(path + "/f", {{"w", Dtype::kFloat32, {rows, 0}}}, {});
  const auto written = writer.finish();
  Manifest manifest{.step = 1};
  manifest.files["f"] = {written.bytes, written.header_checksum};
  manifest.model["w"] = {Dtype::kFloat32, {rows, 0}, {{"f", {0, 0}, {rows, 0}, {}}}};
  name_step(folder.path(), manifest, lock);
  EXPECT_THAT(problems_of(folder.path()), IsEmpty());
}

TEST(StateCheckpoint, ManifestsOfLaterVersionsSayWhoCanReadThem) {
  auto text = manifest_text({.versions = {{"fsdp", "9.0"}}});
  const auto at = text.find("\"version\": 1");
  ASSERT_NE(at, text.npos);
  text.replace(at, 12, "\"version\": 3");
  EXPECT_THAT(text_of_error([&] { parse_manifest(text, "manifest.json"); }), HasSubstr("with the checksum"));
  text = signed_text(text);
  EXPECT_THAT(text_of_error([&] { parse_manifest(text, "manifest.json"); }),
              HasSubstr("found 3. Read the checkpoint with the release of fsdp that wrote it"));
}

}  // namespace
}  // namespace fsdp::state
