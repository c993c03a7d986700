// Tests of the measurements of a training: sums over batches and ranks, and the files to which they are written.

#include <fsdp/error.h>
#include <fsdp/metrics.h>
#include <fsdp/scalar_log.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <torch/torch.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/disk_folder.h"
#include "support/thread_ranks.h"
#include "train/event_file.h"

namespace fsdp::test {
namespace {

TEST(RunningSums, AreTheSumsOverBatchesAndRanksAlsoOfARankThatAddedNothing) {
  for (int world : {1, 3}) {
    run_thread_ranks(world, [&](int rank) {
      RunningSums sums(2, torch::kCPU);
      for (int batch = 0; batch < rank; ++batch) sums.add({torch::tensor(0.5F), torch::tensor(10)});
      const int batches = world * (world - 1) / 2;
      EXPECT_THAT(sums.over_ranks(), testing::ElementsAre(0.5 * batches, 10.0 * batches));
    });
  }
  RunningSums alone(1, torch::kCPU);
  const auto loss = torch::ones({}).requires_grad_() * 2;
  alone.add({loss});
  EXPECT_EQ(loss.use_count(), 1U) << "no graph is kept";
  EXPECT_THROW(alone.add({loss, loss}), UsageError);
}

std::vector<nlohmann::json> json_lines(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TEST(ScalarLog, WritesALineOfJsonForEachStepOnRank0BehindARunThatGoesOn) {
  const DiskFolder folder;
  const auto path = folder.path() + "/metrics.jsonl";
  run_thread_ranks(2, [&](int rank) {
    ScalarLog log({.json_lines = path});
    EXPECT_EQ(log.is_on(), rank == 0);
    log.write(1, {{"loss", 0.5}, {"lr", 1e-3}});
    log.write(2, {{"loss", std::numeric_limits<double>::quiet_NaN()}});
  });
  const auto lines = json_lines(path);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["step"], 1);
  EXPECT_EQ(lines[0]["loss"], 0.5);
  EXPECT_EQ(lines[0]["lr"], 1e-3);
  EXPECT_TRUE(lines[1]["loss"].is_null());
  EXPECT_LE(lines[0]["seconds"].get<double>(), lines[1]["seconds"].get<double>());
  run_thread_ranks(1, [&](int) {
    ScalarLog({.json_lines = path, .appends = true}).write(3, {});
    EXPECT_EQ(json_lines(path).size(), 3u);
    ScalarLog({.json_lines = path}).write(1, {});
    EXPECT_EQ(json_lines(path).size(), 1u) << "of a new run";
    EXPECT_FALSE(ScalarLog(ScalarLogOptions{}).is_on());
    EXPECT_THROW(ScalarLog({.json_lines = folder.path() + "/missing/metrics.jsonl"}), Error);
  });
}

// Runs that start together share a folder, also in containers, where they have the same host name and process id.
TEST(ScalarLog, SeveralInOneFolderHaveAFileEach) {
  const DiskFolder folder;
  run_thread_ranks(1, [&](int) {
    std::vector<ScalarLog> logs;
    for (int i = 0; i < 3; ++i) {
      logs.emplace_back(ScalarLogOptions{.tensorboard = folder.path()});
      logs.back().write(i, {{"loss", i}});
    }
  });
  std::vector<size_t> sizes;
  for (const auto& file : std::filesystem::directory_iterator(folder.path())) sizes.push_back(file.file_size());
  EXPECT_THAT(sizes, testing::SizeIs(3));
  EXPECT_THAT(sizes, testing::Each(sizes.front())) << "the first event and one of a step";
}

TEST(ScalarLog, OnAFullDiskIsAnErrorThatSaysWhy) {
  run_thread_ranks(1, [&](int) {
    ScalarLog log({.json_lines = "/dev/full", .appends = true});
    try {
      log.write(1, {{"loss", 0.5}});
      ADD_FAILURE() << "the line is lost";
    } catch (const Error& error) {
      EXPECT_THAT(error.what_without_backtrace(), testing::HasSubstr("No space left on device"));
    }
  });
}

// The system would end the process.
TEST(ScalarLog, BeyondTheLimitOnFilesIsAnErrorThatSaysWhatToDoAndLeavesWholeLines) {
  const DiskFolder folder;
  const auto path = folder.path() + "/metrics.jsonl";
  std::string error;
  run_thread_ranks(1, [&](int) {
    ScalarLog log({.json_lines = path});
    log.write(1, {{"loss", 0.5}});
    rlimit before{};
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    const rlimit full{std::filesystem::file_size(path) + 10, before.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
    try {
      log.write(2, {{"loss", 0.25}});
    } catch (const Error& thrown) {
      error = thrown.what_without_backtrace();
    }
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  });
  EXPECT_THAT(error, testing::HasSubstr("File too large. Raise the limit on the size of files (ulimit -f)"));
  EXPECT_THAT(json_lines(path), testing::SizeIs(1));
}

// The first case is from RFC 3720, B.4: the checksum of 32 zero bytes is 0x8a9136aa.
TEST(EventFile, ChecksumsAreCastagnolisMasked) {
  constexpr uint32_t kOfZeros = 0x8a9136aau;
  EXPECT_EQ(train::masked_crc32c(std::string(32, '\0')), ((kOfZeros >> 15) | (kOfZeros << 17)) + 0xa282ead8u);
  EXPECT_EQ(train::masked_crc32c(""), 0xa282ead8u);
}

TEST(ScalarLog, IsReadByTensorBoard) {
  const DiskFolder folder;
  run_thread_ranks(2, [&](int) {
    ScalarLog log({.tensorboard = folder.path() + "/runs/first"});
    log.write(1, {{"loss", 2.5}, {"tokens_per_second", 1e6}});
    log.write(300, {{"loss", 1.25}});
  });
  const auto command =
      c10::str(FSDP_TEST_PYTHON, " -B ", FSDP_TEST_SOURCES "/train/events.py", " ", folder.path(), "/runs/first 2>&1");
  auto* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::ostringstream printed;
  std::array<char, 256> part{};
  while (fgets(part.data(), part.size(), pipe) != nullptr) printed << part.data();
  const int status = pclose(pipe);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << printed.str();
  EXPECT_EQ(status, 0);
  EXPECT_THAT(printed.str(), testing::EndsWith("loss 1 2.5\nloss 300 1.25\ntokens_per_second 1 1000000.0\n"));
}

}  // namespace
}  // namespace fsdp::test
