#pragma once
/// \file
/// The messages of one order over a c10d backend, of which the first between two ranks in an operation says what the
/// operation is. Every wait for them ends.

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/core/fingerprint.h"
#include "comm/core/mutex.h"
#include "comm/core/traffic_count.h"

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
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

/// What travels in one message: several small tensors, each from a multiple of 16 bytes on, or a single one.
using Parcel = std::vector<at::Tensor>;

/// The parcels of `tensors`: small ones share a parcel, and larger ones follow in ranges of at most `most` bytes,
/// each by itself. They depend on sizes and dtypes alone, so both ends divide alike. Empty tensors are left out.
std::vector<Parcel> parcels_of(std::span<const at::Tensor> tensors, int64_t most = std::numeric_limits<int64_t>::max());
int64_t bytes_of(const Parcel& parcel);
/// Tensors like those of `parcel`, as they lie in `memory`, of bytes.
Parcel parcel_in(const at::Tensor& memory, const Parcel& parcel);

/// A wait was ended by `Mail::interrupt()`.
struct Interrupted : std::exception {
  const char* what() const noexcept override { return "interrupted"; }
};

/// Two ranks' operations differ.
struct Disagreement : std::exception {
  const char* what() const noexcept override { return "the ranks' operations differ"; }
  int peer = -1;
  /// "operation, bytes"
  std::string difference;
  Fingerprint mine, theirs;
};

/// Connections that several orders use, one call at a time.
struct Transport {
  explicit Transport(c10::intrusive_ptr<c10d::Backend> its_backend) : backend(std::move(its_backend)) {}
  Mutex mutex;
  const c10::intrusive_ptr<c10d::Backend> backend FSDP_GUARDED_BY(mutex);
};

/// Sends parcels to other ranks and receives theirs, operation by operation.
///
/// The first message to a rank in an operation is a header: this rank's fingerprint, in which the first parcel is
/// enclosed if it is small. Other parcels follow at once, each in a message of its own, and so do the receives of those
/// that cannot be enclosed: data does not wait until the receiver has seen the header. Gloo ends the process in which
/// more comes than is expected, so the tags of these messages have a hash of the fingerprint, and ranks whose
/// operations differ do not receive each other's data. Two ranks between which data moves in one direction at least
/// send each other a header, so that both learn of a difference. The receives of a rank's next two headers are posted
/// ahead: one that is an operation ahead sends its header at once.
///
/// What waits throws Interrupted, or what the backend throws when the timeout is over or a connection breaks. Thread
/// safety: one thread at a time, but for `interrupt` and `waiting_for`.
class Mail {
 public:
  static constexpr int64_t kEnclosedBytes = int64_t{8} << 10;
  /// How many orders a transport has: Gloo's tags have room for no more.
  static constexpr int kOrders = 1 << 14;

  struct Options {
    int rank = 0;
    std::vector<int> peers = {};  ///< the other ranks of the order
    /// Each operation begins with meet().
    bool compares_first = false;
    std::chrono::milliseconds timeout{};
    /// The number of this order among those of the transport, the same on both ends.
    int order = 0;
    std::shared_ptr<const CountByPeer> traffic = nullptr;  ///< where data counts; null: nowhere
  };
  Mail(std::shared_ptr<Transport> transport, Options options)
      : transport_(std::move(transport)), options_(std::move(options)) {}

  /// Begins an operation, whose timeout begins too.
  void begin(const Fingerprint& mine);
  /// Sends a header, if none was sent in this operation, and `parcels`, whose tensors stay as they are until finish().
  /// `answered`: whether `peer` sends this rank a header, too.
  void send(int peer, const std::vector<Parcel>& parcels = {}, bool answered = true);
  /// Waits for the header of `peer`, unless it came in this operation, and compares it. Throws Disagreement.
  void check(int peer);
  /// Receives further parcels from `peer`. Nothing is written before agree(), but for tensors that are alone in a large
  /// parcel; all tensors are there after wait() or finish().
  void receive(int peer, std::vector<Parcel> parcels);
  /// Checks all that answer.
  void agree();
  /// Checks `peer`, and waits for its oldest parcel that is still to come.
  void wait(int peer);
  /// Checks all that answer, and waits for all data and for the headers to those that do not.
  void finish();
  /// Waits until the headers of a finished operation have left, and posts the receives of the next ones. The next
  /// operation begins with this if nobody called it.
  void prepare();
  /// Returns when every peer has come to this operation: headers alone go to and from all of them.
  void meet();

  /// Runs `wait`, which waits for something else and which `end`, called from another thread, makes throw.
  void wait_elsewhere(const std::function<void()>& wait, std::function<void()> end);
  /// Ends the wait in progress, before it returns, and all later ones.
  void interrupt();
  bool is_out_of_time() const { return std::chrono::steady_clock::now() >= deadline_; }
  /// The rank that this one waits for or failed to hear from; -1 if none.
  int waiting_for() const { return waiting_for_; }
  /// It is this rank that a wait elsewhere did not hear from.
  void blame(int peer) { waiting_for_ = peer; }

 private:
  // What may be enclosed is received later than what may not, so both have an order of their own.
  enum class Channel : int { kHeader, kSmall, kLarge };
  struct Transfer {
    c10::intrusive_ptr<c10d::Work> work;
    int peer = -1;
  };
  struct Transit {
    Parcel parcel;
    at::Tensor memory = {};  // what the message has; undefined: no receive is posted yet
    Transfer transfer = {};  // without work: the parcel is enclosed in a header
  };
  // Of one peer.
  struct Box {
    at::Tensor outgoing, incoming;  // headers
    Transfer leaving;
    std::deque<Transit> expected, arriving;                                 // headers and parcels
    bool sent = false, answers = false, checked = false, encloses = false;  // in this operation
  };

  Transfer post_send(const at::Tensor& tensor, int peer, Channel channel);
  Transfer post_recv(const at::Tensor& tensor, int peer, Channel channel);
  int tag(Channel channel) const;
  void post_receives(Box& box, int peer);
  void wait(const Transfer& transfer);
  Box& box_of(int peer);
  void expect_header(Box& box, int peer, at::Tensor memory);
  void open(const Fingerprint& mine);

  const std::shared_ptr<Transport> transport_;
  const Options options_;
  std::map<int, Box> boxes_;
  std::vector<Transfer> sent_;
  Fingerprint mine_;
  // This rank's latest operations, by their numbers.
  std::array<Fingerprint, 16> latest_{};
  std::chrono::steady_clock::time_point deadline_{};
  std::atomic<int> waiting_for_{-1};
  Mutex mutex_;
  std::condition_variable_any changed_;
  bool interrupted_ FSDP_GUARDED_BY(mutex_) = false;
  std::function<void()> end_ FSDP_GUARDED_BY(mutex_);  // of the wait in progress
};

}  // namespace fsdp
