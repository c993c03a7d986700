#pragma once
/// \file
/// A place where thread ranks exchange bytes.

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::test::checked {

using Bytes = std::vector<std::byte>;
/// The name that every message between two ranks has. Collectives have names of their own.
inline const std::string kMessage = "message";

/// Thrown if a message never comes: its sender has left or was too slow, or the ranks wait for each other.
struct NeverComes {};

/// A first-in, first-out mailbox for each pair of ranks. Thread safety: any thread may call any member.
class MeetingPlace {
 public:
  struct Message {
    std::string what;  // name of the collective
    Bytes bytes;
  };

  /// Returns the same place to all ranks that pass stores with the same keys. Collective.
  static std::shared_ptr<MeetingPlace> enter(c10d::Store& store, int rank, c10::Device device,
                                             std::chrono::milliseconds timeout);

  void post(int from, int to, Message message);
  /// Waits for the next message, and throws NeverComes if none comes. Reports a violation if the sender's `what`
  /// differs, or if ranks wait for each other in two places.
  Bytes take(int from, int to, const std::string& what, std::chrono::milliseconds timeout);
  /// Declares that the rank will neither post nor take anything more.
  void leave(int rank);

 private:
  using Box = std::pair<int, int>;  // {from, to}
  struct Waiter {
    MeetingPlace* place;
    Box box;
    std::string what;
  };
  bool closes_circle(const Waiter& waiter) const;

  // The rank that waits in each place, keyed by its device. All places share the map.
  static std::map<c10::DeviceIndex, Waiter> waiters_;
  std::map<Box, std::deque<Message>> boxes_;
  std::map<int, c10::DeviceIndex> devices_;
  std::set<int> left_;
};

}  // namespace fsdp::test::checked
