// When something fails, the last operations of all ranks are written to one file.

#include "comm/failure/flight_recorder.h"

#include <fsdp/collectives.h>
#include <fsdp/error.h>
#include <gmock/gmock.h>
#include <stdlib.h>
#include <torch/torch.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "support/disk_folder.h"
#include "support/thread_ranks.h"

namespace fsdp::test {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::SizeIs;

// As long as the object lives, ranks that join record into files in a folder.
class RecordedFlight {
 public:
  RecordedFlight() { setenv(kFlightRecorderVariable, file().c_str(), /*overwrite=*/1); }
  ~RecordedFlight() { unsetenv(kFlightRecorderVariable); }
  RecordedFlight(const RecordedFlight&) = delete;
  RecordedFlight& operator=(const RecordedFlight&) = delete;
  std::string file() const { return folder_.path() + "/flight.json"; }
  nlohmann::json gathered() const { return nlohmann::json::parse(std::ifstream(file())); }

 private:
  DiskFolder folder_;
};

TEST(FlightRecorder, HasWhatAllRanksDidLastWhenTheyDisagreeAndTheErrorNamesTheFile) {
  const RecordedFlight flight;
  std::vector<std::string> messages;
  std::mutex mutex;
  run_thread_ranks(3, [&](int rank) {
    fsdp::all_reduce_(torch::ones({4}));
    try {
      const Tag tag{rank == 1 ? "theirs" : "ours", {}};
      default_process_group()->communicator().barrier(tag)->wait();
    } catch (const Mismatch& error) {
      const std::lock_guard lock(mutex);
      messages.emplace_back(error.what_without_backtrace());
    }
  });
  EXPECT_THAT(messages, testing::AllOf(SizeIs(3), Each(HasSubstr("last operations of all ranks of this host are in '" +
                                                                 flight.file() + "'"))));
  const auto ranks = flight.gathered()["ranks"];
  ASSERT_EQ(ranks.size(), 3u);
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ranks[rank]["rank"].get<size_t>(), rank);
    const auto& operations = ranks[rank]["operations"];
    // Ignores the operations inside a host that an operation consists of.
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

TEST(FlightRecorder, KeepsTheNewestOperationsAndWritesNothingWithoutAFailure) {
  const RecordedFlight flight;
  constexpr int kMany = 1500;
  run_thread_ranks(2, [&](int) {
    for (int i = 0; i < kMany; ++i) barrier();
  });
  EXPECT_FALSE(std::ifstream(flight.file()).good());
  EXPECT_EQ(gather_flight_records(flight.file()), 2);
  const auto gathered = flight.gathered();
  for (const auto& rank : gathered["ranks"]) {
    const auto& operations = rank["operations"];
    EXPECT_EQ(operations.size(), 1024u);
    EXPECT_GE(operations.back()["number"].get<int>(), kMany);
    EXPECT_EQ(operations.back()["number"].get<int>() - operations.front()["number"].get<int>(), 1023);
  }
  remove_flight_records(flight.file());
  EXPECT_EQ(gather_flight_records(flight.file()), 0);
}

TEST(FlightRecorder, ThatCannotBeMadeIsAnErrorThatNamesTheFile) {
  setenv(kFlightRecorderVariable, "/missing/folder/flight.json", 1);
  const auto join = [] { open_timeline({.rank = 1, .world_size = 2}); };
  EXPECT_THAT(join, testing::ThrowsMessage<UsageError>(
                        HasSubstr("FSDP_FLIGHT_RECORDER: /missing/folder/flight.json.rank1: cannot make the file: ")));
  unsetenv(kFlightRecorderVariable);
}

}  // namespace
}  // namespace fsdp::test
