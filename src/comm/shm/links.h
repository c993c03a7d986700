#pragma once
/// \file
/// Unix sockets between the ranks of one host: they carry descriptors, and break when a rank dies.

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/core/ranks.h"
#include "comm/posix/descriptor.h"

namespace fsdp::shm {

/// What ranks send each other while they set up a segment.
struct Notice {
  uint64_t number = 0;  // of the segment
  uint64_t bytes = 0;   // 0: there is none
  /// Segments of all ranks: 0. Those that two ranks set up while the others do something else: the communicator.
  uint64_t channel = 0;
  /// What went wrong; empty: nothing.
  std::array<char, 400> error{};
};

/// What others need to reach a listener, in one word: a socket's name, which everybody on this host can see, '/', and a
/// secret. This one is nobody else's.
std::string new_contact();

/// Listens on a socket in the abstract namespace, whose names vanish with the process. Throws Obstacle.
class Listener {
 public:
  explicit Listener(const std::string& contact = new_contact());
  const std::string& contact() const { return contact_; }
  const std::string& secret() const { return secret_; }
  int descriptor() const { return socket_.number(); }

 private:
  Descriptor socket_;
  std::string contact_, secret_;
};

/// One connection with each other rank. Thread safety: one thread at a time; `await` beside it.
class Links {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  /// Connects to lower ranks by the contacts of their listeners and waits for the higher ones. Connections of other
  /// users, and those that do not say this listener's secret, are passed over. Collective.
  /// Throws PeerLost naming a rank that is gone or does not come, UsageError for a rank of another user, Obstacle.
  Links(const Listener& listener, const std::vector<std::string>& contacts, Ranks ranks,
        std::chrono::milliseconds timeout);

  void send(int peer, const Notice& notice, const Descriptor& attached = {});
  /// The next notice of `peer` on `channel`, once there is one within `limit`.
  std::optional<std::pair<Notice, Descriptor>> receive(int peer, std::chrono::milliseconds limit, uint64_t channel = 0);
  /// Returns when `peer` has sent something, or after `limit`.
  void await(int peer, std::chrono::milliseconds limit) const;
  /// Forgets what `peer` has sent up to now.
  void drain(int peer);
  /// Whether the peer's end is closed: it died or left. A child that it forked and that lives on, with the same
  /// connections, does not hide that.
  bool is_closed(int peer) const;
  /// Closes every connection for the peers, also where a child that this process forked keeps it.
  void leave();
  /// Whether the peer's process is there and not stopped by a signal.
  bool is_running(int peer) const;

 private:
  void connect_to(int peer, const std::string& contact);
  void require_connected() const;
  void accept_higher_ranks(const Listener& listener, Deadline deadline);
  void admit(Descriptor stranger, const Listener& listener);
  void keep(int peer, Descriptor socket);
  int missing() const;
  std::optional<std::pair<Notice, Descriptor>> read(int peer, std::chrono::milliseconds limit);

  Ranks ranks_;
  std::vector<Descriptor> sockets_;
  // Readable once the peer's process has ended; not open where the kernel or a sandbox has no such thing.
  std::vector<Descriptor> processes_;
  std::map<int, std::deque<std::pair<Notice, Descriptor>>> unread_;  // notices on other channels, by peer
};

}  // namespace fsdp::shm
