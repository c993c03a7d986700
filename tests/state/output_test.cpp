// Tests of the one way to write a file, and of what other writers, a user's own files, links, devices and FIFOs see of
// it.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>

#include "state/files.h"
#include "state/format/format_error.h"
#include "state/format/safetensors.h"

namespace fsdp::state {
namespace {

namespace fs = std::filesystem;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

std::vector<std::string> names_below(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  return names;
}

TEST(StateOutput, WritersOfOneNameDoNotMeet) {
  const TemporaryFolder folder;
  const std::vector<float> ones(1000, 1), twos(1000, 2);
  const std::vector<Entry> entries{{"w", Dtype::kFloat32, {1000}}};
  SafetensorsWriter first(folder / "a", entries, {}), second(folder / "a", entries, {});
  const auto half = [](const std::vector<float>& values, size_t number) {
    return std::as_bytes(std::span(values).subspan(500 * number, 500));
  };
  for (const size_t number : {0u, 1u}) {
    first.write(half(ones, number));
    second.write(half(twos, number));
  }
  const auto expect_whole = [&](const std::vector<float>& values) {
    const SafetensorsFile file(folder / "a");
    std::vector<float> found(1000);
    file.read(file.entry("w"), 0, std::as_writable_bytes(std::span(found)));
    EXPECT_EQ(found, values);
  };
  second.finish();
  expect_whole(twos);
  first.finish();
  expect_whole(ones);
  EXPECT_THAT(names_below(folder.path()), ElementsAre("a"));
}

// The system would end the process.
TEST(StateOutput, AFileBeyondTheLimitOfTheProcessIsAnErrorAndLeavesNothing) {
  const TemporaryFolder folder;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit few{1000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &few), 0);
  EXPECT_THROW(write_text(folder / "a", std::string(1001, 'a')), FileError);
  write_text(folder / "b", std::string(1000, 'b'));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(names_below(folder.path()), ElementsAre("b"));
}

TEST(StateOutput, FilesOfTheUsersStayWhateverTheyAreCalled) {
  const TemporaryFolder folder;
  for (const auto* name : {"a.tmp", "a.0.tmp", "a.0123456789abcdeg.tmp"}) put_bytes(folder / name, "mine");
  write_text(folder / "a", "new");
  for (const auto* name : {"a.tmp", "a.0.tmp", "a.0123456789abcdeg.tmp"})
    EXPECT_EQ(bytes_in_file(folder / name), "mine") << name;
  EXPECT_EQ(bytes_in_file(folder / "a"), "new");
}

TEST(StateOutput, LinksAreFollowedAndStay) {
  struct Case {
    const char* link;
    const char* to;
    bool is_there;
  };
  const TemporaryFolder folder;
  fs::create_directory(folder / "below");
  put_bytes(folder / "file", "old");
  fs::permissions(folder / "file", fs::perms(0640));
  for (const auto& [link, to, is_there] : {Case{"to_file", "file", true},
                                           {"to_link", "to_file", true},
                                           {"to_nothing", "below/nothing", false},
                                           {"below/up", "../file", true}}) {
    fs::create_symlink(to, folder / link);
    write_text(folder / link, link);
    EXPECT_TRUE(fs::is_symlink(folder / link)) << link;
    EXPECT_EQ(bytes_in_file(folder / (is_there ? "file" : "below/nothing")), link);
  }
  EXPECT_EQ(fs::status(folder / "file").permissions(), fs::perms(0640)) << "those of the file that was replaced";
  EXPECT_THAT(names_below(folder.path()), UnorderedElementsAre("below", "file", "to_file", "to_link", "to_nothing"));
  EXPECT_THAT(names_below(folder / "below"), UnorderedElementsAre("nothing", "up"));
}

TEST(StateOutput, DevicesAndFifosAreWrittenToAndStay) {
  const TemporaryFolder folder;
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  // A FIFO that is open for reading and writing has a reader, so opening it does not block.
  const Descriptor reader(open((folder / "fifo").c_str(), O_RDWR | O_NONBLOCK));
  write_text(folder / "fifo", "text");
  char text[8] = {};
  EXPECT_EQ(read(reader.number(), text, sizeof text), 4);
  EXPECT_STREQ(text, "text");
  fs::create_symlink("/dev/null", folder / "null");
  fs::create_symlink("/dev/full", folder / "full");
  write_text(folder / "null", "text");
  EXPECT_THAT(text_of_error([&] { write_text(folder / "full", "text"); }),
              HasSubstr("full: cannot write 4 bytes: No space left on device"));
  EXPECT_EQ(fs::status(folder / "null").type(), fs::file_type::character);
  EXPECT_TRUE(fs::is_fifo(folder / "fifo"));
  // File descriptors, as /dev/stdout is one, may lead to a file that has lost its name.
  const Descriptor gone(open((folder / "gone").c_str(), O_RDWR | O_CREAT, 0600));
  fs::remove(folder / "gone");
  write_text("/proc/self/fd/" + std::to_string(gone.number()), "text");
  EXPECT_EQ(lseek(gone.number(), 0, SEEK_END), 4);
  EXPECT_THAT(names_below(folder.path()), UnorderedElementsAre("fifo", "full", "null"));
}

TEST(StateOutput, NothingIsLeftOfAFileThatCannotHaveItsName) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "folder");
  fs::create_symlink("loop", folder / "loop");
  EXPECT_THAT(text_of_error([&] { SafetensorsWriter(folder / "folder", {}, {}); }), HasSubstr("Is a directory"));
  EXPECT_THAT(text_of_error([&] { SafetensorsWriter(folder / "loop", {}, {}); }),
              HasSubstr("levels of symbolic links"));
  const std::string longest(255, 'x');
  write_text(folder / longest, "text");
  EXPECT_EQ(bytes_in_file(folder / longest), "text");
  {
    SafetensorsWriter writer(folder / "a", {}, {});
    ASSERT_EQ(mkfifo((folder / "a").c_str(), 0600), 0);
    EXPECT_THAT(text_of_error([&] { writer.finish(); }), HasSubstr("cannot move the complete file to this name"));
  }
  EXPECT_TRUE(fs::is_fifo(folder / "a"));
  EXPECT_THAT(names_below(folder.path()), UnorderedElementsAre("a", "folder", "loop", longest));
}

// See Note [Temporary files] in src/comm/posix/file.cpp.
TEST(StateOutput, WhatAKilledWriterLeftGoesWithTheNextOneAndNothingElse) {
  const TemporaryFolder folder;
  put_bytes(folder / "a.0123456789abcdeg.tmp", "mine");
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const Descriptor from_writer(pipe_ends[0]), to_test(pipe_ends[1]);
  const pid_t writer = fork();
  if (writer == 0) {
    OutputFile file(folder / "a");
    file.write("half");
    if (write(to_test.number(), "x", 1) == 1)
      for (;;) pause();
  }
  char begun = 0;
  ASSERT_EQ(read(from_writer.number(), &begun, 1), 1);
  remove_leftovers(folder / "a");
  EXPECT_EQ(names_below(folder.path()).size(), 2u) << "it still writes";
  kill(writer, SIGKILL);
  ASSERT_EQ(waitpid(writer, nullptr, 0), writer);
  EXPECT_EQ(names_below(folder.path()).size(), 2u);
  fs::create_symlink("a", folder / "link");
  remove_leftovers(folder / "link");
  EXPECT_THAT(names_below(folder.path()), UnorderedElementsAre("a.0123456789abcdeg.tmp", "link"));
}

TEST(StateOutput, TheNextSaveRemovesWhatKilledOnesLeftInARunsFolder) {
  const TemporaryFolder folder;
  for (const auto* name : {"latest.0123456789abcdef.tmp", "next.0123456789abcdef.tmp", "other.0123456789abcdef.tmp"})
    put_bytes(folder / name, "half");
  write_small_checkpoint(folder.path(), 1);
  EXPECT_THAT(names_below(folder.path()),
              UnorderedElementsAre("latest", "lock", "step-000000000001", "other.0123456789abcdef.tmp"));
}

}  // namespace
}  // namespace fsdp::state
