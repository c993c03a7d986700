#pragma once
/// \file
/// The messages of one order, of which the first between two ranks in an operation says what the operation is.

#include "comm/c10d/parcel.h"
#include "comm/c10d/wire.h"
#include "comm/core/fingerprint.h"

#include <array>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace fsdp {

/// Two ranks' operations differ.
struct Disagreement : std::exception {
  const char* what() const noexcept override { return "the ranks' operations differ"; }
  int peer = -1;
  /// "operation, bytes"
  std::string difference;
  Fingerprint mine, theirs;
};

/// Sends parcels to other ranks and receives theirs, operation by operation.
///
/// The first message to a rank in an operation is a header: this rank's fingerprint, in which the first parcel is
/// enclosed if it is small. Other parcels follow at once, each in a message of its own. A rank receives them when it
/// has compared the header with its own operation, because Gloo ends a connection over which more comes than is
/// expected. Two ranks between which data moves in one direction at least send each other a header, so that both learn
/// of a difference.
///
/// The receive of a rank's next header is posted ahead, so that it is under way before this rank asks for it;
/// therefore all headers have one size. Thread safety: one thread at a time.
class Mail {
 public:
  static constexpr int64_t kEnclosedBytes = 256;

  /// `peers`: the other ranks of the order. `compares_first`: each operation begins with meet().
  Mail(std::shared_ptr<Wire> wire, int rank, std::vector<int> peers, bool compares_first);

  /// Begins an operation. `agreed` is called once, when this rank waits for data or for nothing more.
  void begin(const Fingerprint& mine, std::function<void()> agreed);
  /// Sends a header, if none was sent in this operation, and `parcels`, whose tensors stay as they are until finish().
  /// `answered`: whether `peer` sends this rank a header, too.
  void send(int peer, const std::vector<Parcel>& parcels = {}, bool answered = true);
  /// Waits for the header of `peer`, unless it came in this operation, and compares it. Throws Disagreement.
  void check(int peer);
  /// Checks `peer`, and receives one more parcel from it. Its tensors are there after wait() or finish().
  void receive(int peer, Parcel parcel);
  void receive(int peer, const std::vector<Parcel>& parcels);
  /// Waits for the oldest parcel of `peer` that is still to come.
  void wait(int peer);
  /// Checks those that answer, and waits for all data.
  void finish();
  /// Waits until the headers of a finished operation have left, and posts the receives of the next ones. The next
  /// operation begins with this if nobody called it.
  void prepare();
  /// Returns when every peer has come to this operation: headers alone go to and from all of them.
  void meet();

 private:
  struct Transit {
    Wire::Transfer transfer;
    at::Tensor memory;  // what the message has
    Parcel parcel;      // where a shared message is unpacked
  };
  // Of one peer.
  struct Box {
    at::Tensor outgoing, incoming;  // headers
    Wire::Transfer leaving, expected;
    std::deque<Transit> arriving;
    bool sent = false, answers = false, checked = false, encloses = false;  // in this operation
  };

  Box& box_of(int peer);
  void open(const Fingerprint& mine);
  void note_agreement();

  const std::shared_ptr<Wire> wire_;
  const int rank_;
  const std::vector<int> peers_;
  const bool compares_first_;
  std::map<int, Box> boxes_;
  std::vector<Transit> sent_;
  std::function<void()> agreed_;
  Fingerprint mine_;
  // This rank's latest operations, by their numbers.
  std::array<Fingerprint, 16> latest_{};
};

}  // namespace fsdp
