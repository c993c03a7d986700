#pragma once
/// \file
/// Ranks as threads, each with a log of what it communicates.

#include "support/recording_communicator.h"
#include "support/thread_ranks.h"

namespace fsdp::test {

/// A recording communicator per rank.
struct Recorded {
  explicit Recorded(int world) : logs(static_cast<size_t>(world)) {
    for (auto& log : logs) log = std::make_shared<OperationLog>();
    options.wrap = [this](std::shared_ptr<Communicator> inner, int rank) {
      return make_recording_communicator(std::move(inner), logs[static_cast<size_t>(rank)]);
    };
  }
  int64_t count(int rank, const std::string& operation) const {
    int64_t count = 0;
    for (const auto& entry : logs[static_cast<size_t>(rank)]->entries()) count += entry.operation == operation;
    return count;
  }
  std::vector<std::string> subjects(int rank, const std::string& operation) const {
    std::vector<std::string> subjects;
    for (const auto& entry : logs[static_cast<size_t>(rank)]->entries())
      if (entry.operation == operation) subjects.push_back(entry.subject);
    return subjects;
  }
  OperationLog& log(int rank) { return *logs[static_cast<size_t>(rank)]; }
  void clear(int rank) { logs[static_cast<size_t>(rank)]->clear(); }

  std::vector<std::shared_ptr<OperationLog>> logs;
  ThreadRanksOptions options;
};

}  // namespace fsdp::test
