#pragma once
/// \file
/// What a communicator over c10d shares with its duplicates.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/c10d/c10d_options.h"
#include "comm/c10d/issued_windows.h"
#include "comm/c10d/wire.h"
#include "comm/failure/roll_call.h"

namespace fsdp {

class C10dCommunicator;

/// What errors call what a communicator does on its own.
inline constexpr std::string_view kConnecting = "connecting", kStartingOver = "starting over";

/// The store, the roll call, the connections between the ranks, and how often all of them have begun. Leaves the roll
/// call when the last of them is gone.
///
/// Thread safety: one thread at a time, of which a lane's may be one while its caller waits for it.
struct Family {
  Family(c10::intrusive_ptr<c10d::Store> meeting_place, C10dOptions wanted);
  ~Family();
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;

  /// Again, under keys of its own.
  void begin();
  /// Returns when every rank has come to begin again. Collective. Throws PeerLost if one does not come or rank 0's
  /// store is gone.
  void meet_again() const;
  /// A backend for the ranks of one order, whose `name` is no other order's.
  c10::intrusive_ptr<c10d::Backend> connect(const BackendFactory& factory, const std::string& name, int rank,
                                            int world_size) const;

  const c10::intrusive_ptr<c10d::Store> store;
  const C10dOptions options;
  std::shared_ptr<RollCall> roll_call;
  std::shared_ptr<IssuedWindows> windows;  // null: no device has a backend of its own
  /// Made by the first communicator that connects, for all of them; null before.
  std::shared_ptr<Wire::Transport> transport;
  int beginnings = 0;
  int made = 0;  // communicators, in the same order on every rank
  std::vector<C10dCommunicator*> communicators;  // in the order in which they were made, the same on every rank

 private:
  c10::intrusive_ptr<c10d::Store> own_connection() const;
  Verdict lost_store(const std::string& detail) const;
  bool answers() const;
};

}  // namespace fsdp
