// Tests that each rank writes its last operations to a file when a failure occurs.

#include "comm/failure/flight_recorder.h"

#include <fsdp/collectives.h>
#include <fsdp/error.h>
#include <gmock/gmock.h>
#include <stdlib.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/disk_folder.h"
#include "support/thread_ranks.h"

namespace fsdp::test {
namespace {

using testing::HasSubstr;

// As long as the object lives, ranks that join record their operations for files in a folder.
class RecordedFlight {
 public:
  explicit RecordedFlight(const std::string& name = "flight.json") : file_(folder_.path() + '/' + name) {
    setenv(kFlightRecorderVariable, file_.c_str(), /*overwrite=*/1);
  }
  ~RecordedFlight() { unsetenv(kFlightRecorderVariable); }
  RecordedFlight(const RecordedFlight&) = delete;
  RecordedFlight& operator=(const RecordedFlight&) = delete;
  std::string file_of(int rank) const { return str_cat(file_, ".rank", rank); }
  nlohmann::json record_of(int rank) const { return nlohmann::json::parse(std::ifstream(file_of(rank))); }

 private:
  const DiskFolder folder_;
  const std::string file_;
};

// Rank 1 runs another operation than the other ranks. Returns the message of this rank's error.
std::string disagree(int rank) {
  try {
    const Tag tag{rank == 1 ? "theirs" : "ours", {}};
    default_process_group()->communicator().barrier(tag)->wait();
  } catch (const Mismatch& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(FlightRecorder, HasWhatEachRankDidLastWhenTheyDisagreeAndTheErrorNamesTheFile) {
  const RecordedFlight flight;
  run_thread_ranks(3, [&](int rank) {
    fsdp::all_reduce_(torch::ones({4}));
    EXPECT_FALSE(std::filesystem::exists(flight.file_of(rank)));
    EXPECT_THAT(disagree(rank), HasSubstr("This rank's last operations are in '" + flight.file_of(rank) + "'"));
  });
  for (int rank = 0; rank < 3; ++rank) {
    const auto record = flight.record_of(rank);
    EXPECT_EQ(record["rank"].get<int>(), rank);
    EXPECT_EQ(record["world_size"].get<int>(), 3);
    const auto& operations = record["operations"];
    // Finds an operation, but not the operations inside a host that it consists of.
    const auto find = [&](const std::string& operation, const std::string& key, const nlohmann::json& value) {
      return std::find_if(operations.begin(), operations.end(), [&](const nlohmann::json& entry) {
        return entry["operation"] == operation && entry[key] == value;
      });
    };
    const auto barrier = find("barrier", "group", rank == 1 ? "theirs" : "ours");
    const auto reduction = find("all_reduce(sum)", "bytes", 16);
    ASSERT_NE(barrier, operations.end());
    ASSERT_NE(reduction, operations.end());
    const auto& last = *barrier;
    const auto& before = *reduction;
    EXPECT_NE(last["stage"].get<std::string>(), "done");
    EXPECT_EQ(before["stage"].get<std::string>(), "done");
    EXPECT_EQ(last["sequence"].get<int>(), before["sequence"].get<int>() + 1);
    EXPECT_GE(before["ended_ns"].get<int64_t>(), before["begun_ns"].get<int64_t>());
  }
}

TEST(FlightRecorder, KeepsTheNewestOperations) {
  const RecordedFlight flight;
  constexpr int kMany = 1500;
  run_thread_ranks(2, [&](int rank) {
    for (int i = 0; i < kMany; ++i) barrier();
    EXPECT_NE(disagree(rank), "");
  });
  for (int rank = 0; rank < 2; ++rank) {
    const auto operations = flight.record_of(rank)["operations"];
    EXPECT_EQ(operations.size(), 1024u);
    EXPECT_GE(operations.back()["number"].get<int>(), kMany);
    EXPECT_EQ(operations.back()["number"].get<int>() - operations.front()["number"].get<int>(), 1023);
  }
}

TEST(FlightRecorder, ThatCannotWriteSaysSoBehindTheFailure) {
  const RecordedFlight flight("missing/flight.json");
  run_thread_ranks(2, [](int rank) {
    EXPECT_THAT(disagree(rank),
                HasSubstr("missing/flight.json.rank" + std::to_string(rank) + ": cannot create the file"));
  });
}

}  // namespace
}  // namespace fsdp::test
