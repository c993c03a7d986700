#pragma once
/// \file
/// The messages of one queue over a c10d backend. The first message between two ranks in an operation describes the
/// operation. Every wait for a message ends.

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/core/fingerprint.h"
#include "comm/core/mutex.h"
#include "comm/core/traffic_count.h"

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fsdp {

/// The tensors of one message: several small tensors, each beginning at a multiple of 16 bytes, or a single tensor.
using Parcel = std::vector<at::Tensor>;

/// Divides tensors into parcels: small tensors share a parcel, and larger ones follow in ranges of at most `most`
/// bytes, each in its own parcel. The division depends only on sizes and dtypes, so it is the same on both ranks. Empty
/// tensors are left out.
std::vector<Parcel> parcels_of(std::span<const at::Tensor> tensors, int64_t most = std::numeric_limits<int64_t>::max());
int64_t bytes_of(const Parcel& parcel);
/// Returns tensors like those of `parcel` that are views of `memory`, a tensor of bytes.
Parcel parcel_in(const at::Tensor& memory, const Parcel& parcel);

/// Thrown when `Mail::interrupt()` ends a wait.
struct Interrupted : std::exception {
  const char* what() const noexcept override { return "interrupted"; }
};

/// Thrown when two ranks' operations differ.
struct Disagreement : std::exception {
  const char* what() const noexcept override { return "the ranks' operations differ"; }
  int peer = -1;
  /// The fields that differ, e.g. "operation, bytes".
  std::string difference;
  Fingerprint mine, theirs;
};

/// The connections of one backend, shared by several queues (sequences of operations). The mutex serialises the calls
/// of the backend.
struct Transport {
  const c10::intrusive_ptr<c10d::Backend> backend FSDP_GUARDED_BY(mutex);
  Mutex mutex = {};
};

/// Sends parcels to other ranks and receives parcels from them, operation by operation.
///
/// The first message to a rank in an operation is a header: this rank's fingerprint and, if it is small, the first
/// parcel. Other parcels follow at once, each in a message of its own. The receives of parcels that are too large for a
/// header are posted at once too, so their data does not wait until the receiver has seen the header. Gloo ends the
/// process if a message is longer than its receive. Therefore the tags of these messages contain a hash of the
/// fingerprint, and ranks whose operations differ do not receive each other's data. Two ranks between which data moves
/// in at least one direction send each other a header, so both notice a difference. For each peer the receives of two
/// headers are posted ahead, so a peer that is one operation ahead can send its header at once.
///
/// Functions that wait throw Interrupted, or the backend's error when the timeout has passed or a connection breaks.
/// Only one thread at a time may use it, except `interrupt` and `waiting_for`, which any thread may call.
class Mail {
 public:
  static constexpr int64_t kEnclosedBytes = int64_t{8} << 10;
  /// The most queues of one transport; Gloo's tags have no room for more.
  static constexpr int kQueues = 1 << 14;

  struct Options {
    int rank = 0;
    std::vector<int> peers = {};  ///< the other ranks of the queue
    /// True if each operation begins with meet().
    bool compares_first = false;
    std::chrono::milliseconds timeout{};
    /// The number of this queue among the transport's queues, the same on both ranks.
    int queue = 0;
    std::shared_ptr<const CountByPeer> traffic = nullptr;  ///< counts messages and bytes; may be null
  };
  Mail(std::shared_ptr<Transport> transport, Options options)
      : transport_(std::move(transport)), options_(std::move(options)) {}

  /// Begins an operation and its timeout.
  void begin(const Fingerprint& mine);
  /// Sends a header, unless this operation has sent one to `peer`, and `parcels`, whose tensors must not change until
  /// finish(). `answered` says whether `peer` sends a header to this rank too.
  void send(int peer, const std::vector<Parcel>& parcels = {}, bool answered = true);
  /// Waits for the header of `peer`, unless it has come in this operation, and compares it. Throws Disagreement.
  void check(int peer);
  /// Receives further parcels from `peer`. Before agree(), only tensors that are alone in a large parcel are written.
  /// All tensors have their values after wait() or finish().
  void receive(int peer, std::vector<Parcel> parcels);
  /// Calls check() for every peer that sends a header to this rank.
  void agree();
  /// Calls check() for `peer` and waits for its oldest parcel that has not arrived.
  void wait(int peer);
  /// Calls check() for every peer that sends a header to this rank. Waits for all data and for this rank's headers to
  /// peers that send none.
  void finish();
  /// Waits until the headers of a finished operation have been sent, and posts the receives of the next ones. The next
  /// operation begins with this call if no one has made it.
  void prepare();
  /// Exchanges headers with all peers. Returns when every peer has reached this operation.
  void meet();

  /// Runs `wait`, which waits for something other than mail. `end`, called from another thread, must make `wait` throw.
  void wait_elsewhere(const std::function<void()>& wait, std::function<void()> end);
  /// Ends the wait in progress and all later ones. Returns when the wait in progress has ended.
  void interrupt();
  bool is_out_of_time() const { return std::chrono::steady_clock::now() >= deadline_; }
  /// Returns the rank that this one waits for or failed to hear from; -1 if there is none.
  int waiting_for() const { return waiting_for_; }
  /// Records that a wait in wait_elsewhere() failed to hear from `peer`.
  void blame(int peer) { waiting_for_ = peer; }

 private:
  // Small parcels are those that can be enclosed in a header. They are received later than large ones, so each kind has
  // its own channel, in which messages keep their order.
  enum class Channel : int { kHeader, kSmall, kLarge };
  using Transfer = c10::intrusive_ptr<c10d::Work>;
  struct Transit {
    Parcel parcel;
    at::Tensor memory = {};  // memory of the message; undefined until a receive is posted
    Transfer transfer = {};  // null if a header encloses the parcel
  };
  // The messages to and from one peer.
  struct Box {
    at::Tensor outgoing, incoming;  // headers
    Transfer leaving;
    std::vector<Transfer> sent_parcels;
    std::deque<Transit> expected, arriving;               // headers and parcels
    bool sent = false, answers = false, checked = false;  // in this operation
  };

  Transfer post(bool sends, const at::Tensor& tensor, int peer, Channel channel);
  void post_receives(Box& box, int peer);
  void wait(const Transfer& transfer, int peer);
  Box& box_of(int peer);
  void expect_header(Box& box, int peer, at::Tensor memory);
  void open(const Fingerprint& mine);

  const std::shared_ptr<Transport> transport_;
  const Options options_;
  std::map<int, Box> boxes_;
  Fingerprint mine_;
  // This rank's latest operations; operation n is at n % 16.
  std::array<Fingerprint, 16> latest_{};
  std::chrono::steady_clock::time_point deadline_{};
  std::atomic<int> waiting_for_{-1};
  Mutex mutex_;
  std::condition_variable_any changed_;
  bool interrupted_ FSDP_GUARDED_BY(mutex_) = false;
  std::function<void()> end_ FSDP_GUARDED_BY(mutex_);  // ends the wait in progress
};

}  // namespace fsdp
