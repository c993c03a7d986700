#pragma once
/// \file
/// Unix sockets between the ranks of one host: they carry descriptors, and break when a rank dies.

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/descriptor.h"

namespace fsdp::shm {

/// What ranks send each other while they set up a segment.
struct Message {
  uint64_t number = 0;  // of the segment
  uint64_t bytes = 0;
  // Ranks that are threads of one process use one mapping.
  uint64_t process = 0;
  const void* address = nullptr;
  /// What went wrong; empty: nothing.
  std::array<char, 400> error{};
};

/// Listens on a socket in the abstract namespace, whose names vanish with the process. Throws Obstacle.
class Listener {
 public:
  Listener();
  const std::string& name() const { return name_; }
  int descriptor() const { return socket_.number(); }

 private:
  Descriptor socket_;
  std::string name_;
};

/// One connection with each other rank. Thread safety: one thread.
class Links {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  /// Connects to lower ranks by the names of their listeners and waits for the higher ones. Collective.
  /// Throws PeerLost naming a rank that is gone or does not come, UsageError for a rank of another user, Obstacle.
  Links(const Listener& listener, const std::vector<std::string>& names, int rank, std::chrono::milliseconds timeout);

  void send(int peer, const Message& message, const Descriptor& attached = {});
  /// The next message of `peer`, once there is one within `limit`.
  std::optional<std::pair<Message, Descriptor>> receive(int peer, std::chrono::milliseconds limit);
  /// Whether the peer's end is closed: it died or left.
  bool is_closed(int peer) const;
  /// Whether the peer's process is there and not stopped by a signal.
  bool is_running(int peer) const;

 private:
  void connect_to(int peer, const std::string& name);
  void accept_from(const Listener& listener, Deadline deadline);
  void wait_for_arrival(int descriptor, Deadline deadline) const;
  int missing() const;
  std::string place() const;

  int rank_;
  std::vector<Descriptor> sockets_;
};

}  // namespace fsdp::shm
