// Folders of checkpoints: which one is loaded, what is found in one that is damaged.

#include <gmock/gmock.h>
#include <sys/wait.h>

#include <csignal>
#include <random>

#include "state/format/checkpoint_reader.h"
#include "state/format/format_error.h"
#include "state/format/host_name.h"
#include "unit/state_files.h"

namespace fsdp::state {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kFirst[] = "model-00000-of-00002.safetensors", kSecond[] = "model-00001-of-00002.safetensors";

std::vector<float> rows_of(CheckpointReader& reader, const std::string& name, int64_t first, int64_t rows) {
  const auto& tensor = reader.manifest().model.at(name);
  std::vector<float> values(static_cast<size_t>(rows) * tensor.bytes_per_row() / sizeof(float));
  reader.read_rows(name, tensor, first, rows, std::as_writable_bytes(std::span(values)));
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
  EXPECT_THAT(format_error_of([&] { rows_of(reader, "weight", 4, 2); }), HasSubstr("tensor 'weight' of sizes [5, 3]"));
  EXPECT_EQ(reader.manifest().step, 1);
  EXPECT_EQ(reader.manifest().extra, R"({"epoch":3})");
}

TEST(StateCheckpoint, OnlyTheFilesOfWantedRowsAreRead) {
  const TemporaryFolder folder;
  write_small_checkpoint(folder.path(), 1);
  std::filesystem::remove(folder / "step-000000000001/" + kSecond);
  CheckpointReader reader(folder.path());
  EXPECT_EQ(rows_of(reader, "weight", 0, 3), floats(9, 100));
  EXPECT_THAT(format_error_of([&] { rows_of(reader, "weight", 2, 2); }), HasSubstr(kSecond));
}

TEST(StateCheckpoint, TheNewestThatLatestNamesIsLoaded) {
  const TemporaryFolder folder;
  EXPECT_THAT(format_error_of([&] { find_checkpoint(folder / "none"); }), HasSubstr("no such folder"));
  EXPECT_THAT(format_error_of([&] { find_checkpoint(folder.path()); }), HasSubstr("expected a checkpoint, found none"));
  write_small_checkpoint(folder.path(), 1);
  write_small_checkpoint(folder.path(), 20);
  EXPECT_EQ(find_checkpoint(folder.path()), folder / "step-000000000020");
  EXPECT_EQ(find_checkpoint(folder / "step-000000000001"), folder / "step-000000000001");
  for (const auto* latest : {"../../etc", "step-000000000003", "", "step-1"}) {
    write_text(folder / "latest", latest);
    EXPECT_EQ(find_checkpoint(folder.path()), folder / "step-000000000020") << latest;
  }
}

// A save may end before the checkpoint has its name, and between that and `latest`; steps may be smaller than before.
TEST(StateCheckpoint, TheNewestIsTheLastOneThatGotItsName) {
  const TemporaryFolder folder;
  for (const int64_t step : {30, 10, 20}) write_small_checkpoint(folder.path(), step);
  EXPECT_EQ(find_checkpoint(folder.path()), folder / "step-000000000020");
  EXPECT_FALSE(std::filesystem::exists(folder / "next"));
  write_text(folder / "next", "step-000000000015\n");
  EXPECT_EQ(find_checkpoint(folder.path()), folder / "step-000000000020") << "15 did not get its name";
  std::filesystem::copy(folder / "step-000000000010", folder / "step-000000000015");
  EXPECT_EQ(find_checkpoint(folder.path()), folder / "step-000000000015") << "it got its name, `latest` was not written";
  std::filesystem::remove(folder / "latest");
  EXPECT_EQ(find_checkpoint(folder.path()), folder / "step-000000000015") << "as the first save would leave it";
  write_small_checkpoint(folder.path(), 5);
  EXPECT_EQ(find_checkpoint(folder.path()), folder / "step-000000000005");
}

// The first ends between the checkpoint's name and `latest`, the second before its checkpoint has a name.
TEST(StateCheckpoint, TheNewestStaysThatAfterTwoSavesThatEnded) {
  const TemporaryFolder folder;
  write_small_checkpoint(folder.path(), 1);
  std::filesystem::copy(folder / "step-000000000001", folder / "step-000000000002");
  write_text(folder / "next", "step-000000000002\n");
  {
    const FolderLock lock(folder.path());
    begin_step(folder.path(), 3, lock);
    write_text(folder / "next", "step-000000000003\n");
  }
  EXPECT_EQ(find_checkpoint(folder.path()), folder / "step-000000000002");
  std::filesystem::remove(folder / "next");
  EXPECT_EQ(find_checkpoint(folder.path()), folder / "step-000000000002");
}

TEST(StateCheckpoint, ThoseBeforeTheNewestAreRemoved) {
  const TemporaryFolder folder;
  for (const int64_t step : {1, 2, 3}) write_small_checkpoint(folder.path(), step, 2);
  EXPECT_THAT(complete_steps(folder.path()), ElementsAre(2, 3));
  write_small_checkpoint(folder.path(), 1, 2);
  EXPECT_THAT(complete_steps(folder.path()), ElementsAre(1, 3)) << "the one that was just written stays";
  EXPECT_THAT(incomplete_names(folder.path()), IsEmpty());
}

TEST(StateCheckpoint, OfTheSameStepIsReplaced) {
  const TemporaryFolder folder;
  write_small_checkpoint(folder.path(), 1);
  put_bytes(folder / "step-000000000001/old", "x");
  write_small_checkpoint(folder.path(), 1);
  EXPECT_FALSE(std::filesystem::exists(folder / "step-000000000001/old"));
  EXPECT_THAT(problems_of(folder.path()), IsEmpty());
}

TEST(StateCheckpoint, ThatWasNotCompletedIsNoneAndGoesWithTheNextSave) {
  const TemporaryFolder folder;
  {
    const FolderLock lock(folder.path());
    put_bytes(begin_step(folder.path(), 7, lock) + "/model-00000-of-00001.safetensors", "half");
  }
  EXPECT_THAT(complete_steps(folder.path()), IsEmpty());
  EXPECT_THAT(incomplete_names(folder.path()), ElementsAre(StartsWith("partial-step-000000000007.")));
  EXPECT_THAT(format_error_of([&] { find_checkpoint(folder.path()); }), HasSubstr("every save was interrupted"));
  write_small_checkpoint(folder.path(), 8);
  EXPECT_THAT(incomplete_names(folder.path()), IsEmpty());
}

TEST(StateCheckpoint, TwoJobsDoNotWriteToOneFolder) {
  const TemporaryFolder folder;
  const FolderLock lock(folder.path());
  EXPECT_THAT(format_error_of([&] { FolderLock other(folder.path()); }),
              HasSubstr(folder.path() + ": expected no other job that writes checkpoints here, found process " +
                        std::to_string(getpid()) + " on host '" + host_name() + "', which has locked"));
}

// One change of a byte, a file's length or its place, anywhere.
std::string damage(const std::string& checkpoint, std::mt19937& random) {
  const char* names[] = {kFirst, kSecond, kManifestName};
  const auto path = checkpoint + "/" + names[random() % 3];
  auto bytes = bytes_in_file(path);
  const auto at = random() % bytes.size();
  const auto kind = random() % 20;
  if (kind == 0) {
    bytes.resize(at);
  } else if (kind == 1) {
    bytes.append(1 + random() % 9, static_cast<char>(random()));
  } else if (kind == 2) {
    std::filesystem::rename(checkpoint + "/" + kFirst, checkpoint + "/x");
    std::filesystem::rename(checkpoint + "/" + kSecond, checkpoint + "/" + kFirst);
    std::filesystem::rename(checkpoint + "/x", checkpoint + "/" + kSecond);
    return "swapped";
  } else {
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
  }
  put_bytes(path, bytes);
  return path + " at " + std::to_string(at) + ", kind " + std::to_string(kind);
}

TEST(StateCheckpoint, DamageAtAThousandPlacesIsFound) {
  const TemporaryFolder folder;
  write_small_checkpoint(folder.path(), 1);
  const auto checkpoint = folder / "step-000000000001";
  ASSERT_THAT(problems_of(checkpoint), IsEmpty());
  std::filesystem::copy(checkpoint, folder / "copy");
  std::mt19937 random(7);
  for (int trial = 0; trial < 1000; ++trial) {
    const auto what = damage(checkpoint, random);
    EXPECT_THAT(problems_of(checkpoint), Not(IsEmpty())) << what;
    std::filesystem::copy(folder / "copy", checkpoint,
                          std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  }
}

TEST(StateCheckpoint, FilesOfAnotherStepAreFound) {
  const TemporaryFolder folder;
  write_small_checkpoint(folder.path(), 1);
  write_small_checkpoint(folder.path(), 2);
  std::filesystem::copy_file(folder / "step-000000000002/" + kFirst, folder / "step-000000000001/" + kFirst,
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(problems_of(folder / "step-000000000001"),
              ElementsAre(HasSubstr("entry 'weight': expected the checksum")));
}

TEST(StateCheckpoint, ManifestsNameFilesOfTheirFolderOnly) {
  for (const auto* name : {"../a", "/etc/passwd", "", ".", "..", ".a", "a/b", "a\\b"})
    EXPECT_FALSE(is_plain_name(name)) << name;
  EXPECT_FALSE(is_plain_name(std::string_view("a\0b", 3)));
  Manifest manifest;
  manifest.files["../other.safetensors"] = {};
  EXPECT_THAT(format_error_of([&] { parse_manifest(manifest_text(manifest), "manifest.json"); }),
              HasSubstr("expected names of files in the same folder, found '../other.safetensors'"));
}

TEST(StateCheckpoint, ManifestsHaveEachRowOnce) {
  const auto error_of_parts = [](const std::vector<TensorPart>& parts) {
    Manifest manifest;
    manifest.files["f"] = {};
    manifest.model["w"] = {Dtype::kFloat32, {4}, parts};
    return format_error_of([&] { parse_manifest(manifest_text(manifest), "manifest.json"); });
  };
  EXPECT_THAT(error_of_parts({{"f", 0, 3, {1}}, {"f", 3, 1, {1}}}), IsEmpty());
  EXPECT_THAT(error_of_parts({{"f", 0, 3, {1}}}),
              HasSubstr("manifest.json: tensor 'w' of sizes [4]: the rows from 3 on are missing"));
  EXPECT_THAT(error_of_parts({{"f", 0, 3, {1}}, {"f", 2, 2, {1}}}),
              HasSubstr("expected rows from 3 on, found 2 rows from 2 on"));
  EXPECT_THAT(error_of_parts({{"f", 0, 5, {1}}}), HasSubstr("found 5 rows from 0 on"));
  EXPECT_THAT(error_of_parts({{"f", 0, 4, {}}}), HasSubstr("a checksum for each MiB"));
  EXPECT_THAT(error_of_parts({{"g", 0, 4, {1}}}), HasSubstr("'g' is not listed"));
}

TEST(StateCheckpoint, ManifestsAreMadeOfWhatEachRankWrote) {
  Manifest first{.step = 4, .optimizer = R"({"state": {"w": {"step": 1}}})"},
      second{.optimizer = R"({"state": {"b": {"step": 2}}})"};
  first.files["f"] = second.files["g"] = {};
  first.model["w"] = {Dtype::kFloat32, {4}, {{"f", 3, 1, {1}}}};
  second.model["w"] = {Dtype::kFloat32, {4}, {{"g", 0, 3, {1}}}};
  second.training["w"] = {Dtype::kFloat32, {1}, {{"g", 0, 1, {1}}}};
  auto all = parse_manifest_part(manifest_text(first), "part");
  EXPECT_THAT(format_error_of([&] { parse_manifest(manifest_text(first), "whole"); }),
              HasSubstr("expected rows from 0 on"));
  add_part(all, parse_manifest_part(manifest_text(second), "part"));
  all = parse_manifest(manifest_text(all), "whole");
  EXPECT_EQ(all.step, 4);
  EXPECT_EQ(all.model.at("w").parts[0].file, "g");
  EXPECT_EQ(all.training.at("w").parts.size(), 1u);
  EXPECT_EQ(all.optimizer, R"({"state":{"w":{"step":1},"b":{"step":2}}})");
  second.model["w"].sizes = {5};
  EXPECT_THAT(format_error_of([&] { add_part(all, second); }),
              HasSubstr("tensor 'w': expected the same on every rank, found F32 [4] and F32 [5]"));
}

TEST(StateCheckpoint, ManifestsOfLaterVersionsSayWhoCanReadThem) {
  auto text = manifest_text({.versions = {{"fsdp", "9.0"}}});
  const auto at = text.find("\"version\": 1");
  ASSERT_NE(at, text.npos);
  text.replace(at, 12, "\"version\": 2");
  EXPECT_THAT(format_error_of([&] { parse_manifest(text, "manifest.json"); }), HasSubstr("with the checksum"));
  const std::string begin = "{\n \"checksum\": \"", digits = "0000000000000000";
  text.replace(begin.size(), 16, digits);
  text.replace(begin.size(), 16, hex_of(checksum_of(std::as_bytes(std::span(text)))));
  EXPECT_THAT(format_error_of([&] { parse_manifest(text, "manifest.json"); }),
              HasSubstr("expected version 1 of the format, found 2. Read it with the release of fsdp that wrote it"));
}

TEST(StateCheckpoint, SavingThatIsKilledAtAnyPointLeavesOneThatLoads) {
  const TemporaryFolder folder;
  write_small_checkpoint(folder.path(), 1);
  std::mt19937 random(3);
  int64_t newest = 1;
  for (int trial = 0; trial < 50; ++trial) {
    const auto microseconds = static_cast<useconds_t>(500 + random() % 10000);
    const auto child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      signal(SIGALRM, SIG_DFL);
      ualarm(microseconds, 0);  // ends it wherever it is
      for (auto step = newest + 1;; ++step) write_small_checkpoint(folder.path(), step, 2);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) << status;
    CheckpointReader reader(folder.path());
    EXPECT_GE(reader.manifest().step, newest);
    newest = reader.manifest().step;
    EXPECT_THAT(problems_of(reader.path()), IsEmpty());
  }
}

}  // namespace
}  // namespace fsdp::state
