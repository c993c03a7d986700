#pragma once
/// \file
/// Thread ranks that each keep a log of their collectives.

#include "support/recording_communicator.h"
#include "support/thread_ranks.h"

namespace fsdp::test {

/// Returns a process group that passes everything on to `group` and records its collectives in `log`. `group` must
/// outlive it.
inline std::shared_ptr<ProcessGroup> recorded(const ProcessGroup& group, const std::shared_ptr<OperationLog>& log) {
  const std::shared_ptr<Communicator> inner(&group.communicator(), [](Communicator*) {});
  return std::make_shared<ProcessGroup>(make_recording_communicator(inner, log), group.local_rank());
}

/// Holds one log per rank, and the option that makes the communicators record.
struct Recorded {
  explicit Recorded(int world) : logs(static_cast<size_t>(world)) {
    for (auto& log : logs) log = std::make_shared<OperationLog>();
    options.wrap = [this](std::shared_ptr<Communicator> inner, int rank) {
      return make_recording_communicator(std::move(inner), logs[static_cast<size_t>(rank)]);
    };
  }
  int64_t count(int rank, const std::string& operation) const {
    return static_cast<int64_t>(log(rank).entries(operation).size());
  }
  std::vector<std::string> subjects(int rank, const std::string& operation) const {
    std::vector<std::string> subjects;
    for (const auto& entry : log(rank).entries(operation)) subjects.push_back(entry.subject);
    return subjects;
  }
  OperationLog& log(int rank) const { return *logs[static_cast<size_t>(rank)]; }
  void clear(int rank) { log(rank).clear(); }

  std::vector<std::shared_ptr<OperationLog>> logs;
  ThreadRanksOptions options;
};

}  // namespace fsdp::test
