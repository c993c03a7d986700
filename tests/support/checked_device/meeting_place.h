#pragma once
/// \file
/// Where ranks that run as threads hand each other bytes.

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
/// What an operation between two ranks is called.
inline const std::string kMessage = "message";

/// What never comes: its rank has left, launches it after something that waits for this, or did not in time.
struct NeverComes {};

/// A first-in, first-out mailbox for each pair of ranks. Thread safety: all of it.
class MeetingPlace {
 public:
  struct Message {
    std::string what;  // the collective
    Bytes bytes;
  };

  /// All ranks that come with the same keys of a store get the same place. Collective.
  static std::shared_ptr<MeetingPlace> enter(c10d::Store& store, int rank, c10::Device device,
                                             std::chrono::milliseconds timeout);

  void post(int from, int to, Message message);
  /// Waits for the next message. Throws NeverComes. Reports the violation if `what` differs from the sender's, or ranks
  /// wait for each other in two places.
  Bytes take(int from, int to, const std::string& what, std::chrono::milliseconds timeout);
  /// The rank posts and takes nothing more.
  void leave(int rank);

 private:
  using Box = std::pair<int, int>;  // from, to
  struct Waiter {
    MeetingPlace* place;
    Box box;
    std::string what;
  };
  bool closes_circle(const Waiter& waiter) const;

  // Of every place: which rank waits where, keyed by its device.
  static std::map<c10::DeviceIndex, Waiter> waiters_;
  std::map<Box, std::deque<Message>> boxes_;
  std::map<int, c10::DeviceIndex> devices_;
  std::set<int> left_;
};

}  // namespace fsdp::test::checked
