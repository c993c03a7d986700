#pragma once
/// \file
/// Where ranks that run as threads hand each other bytes.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace fsdp::test::checked {

using Bytes = std::vector<std::byte>;

/// A first-in, first-out mailbox for each pair of ranks. Thread safety: all of it.
class MeetingPlace {
 public:
  /// All ranks that come with the same keys of a store get the same place. Collective.
  static std::shared_ptr<MeetingPlace> enter(c10d::Store& store, int rank, std::chrono::milliseconds timeout);

  void post(int from, int to, Bytes message);
  /// Waits for the next message. Throws c10::Error if none comes in time.
  Bytes take(int from, int to, std::chrono::milliseconds timeout);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, int>, std::deque<Bytes>> boxes_;
};

}  // namespace fsdp::test::checked
