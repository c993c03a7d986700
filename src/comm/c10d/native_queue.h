#pragma once
/// \file
/// Operations that an accelerator's own backend carries, in the order in which they are issued.

#include <c10/core/Stream.h>
#include <fsdp/communicator.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/c10d/exchange.h"
#include "comm/c10d/issued_windows.h"
#include "comm/c10d/lane.h"
#include "comm/core/fingerprint.h"
#include "comm/core/mutex.h"
#include "comm/core/ranks.h"
#include "comm/failure/roll_call.h"

#include <chrono>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>

namespace fsdp {

/// One queue of operations over one c10d backend. An operation begins after the work that the caller's current stream
/// had at the call or, in a continuation (`Work::then`), after the operation that it follows. Work that a stream gets
/// after `Work::wait()` comes after the operation. No host thread waits for an operation.
///
/// Note [Tensors that cross streams]: when the host frees memory, an allocator reuses it at once on the stream on which
/// it was allocated. So the tensors of an operation, which `move_data` holds, are kept until the caller's stream has
/// been made to wait for the operation: by `Work::wait()`, or when the Work is destroyed. Memory that an operation
/// allocates for itself belongs to a stream that lives as long as the queue.
///
/// Note [A failure on a device]: a thread watches the operations in flight. When it finds an error or a passed
/// deadline, or when the roll call has a verdict, every queue of the device fails with that verdict. Then all their
/// backends are aborted at once, because a kernel may wait for a kernel of another communicator, and the host for any
/// kernel. Operations in flight and later ones throw the verdict. If the verdict names no lost rank and the ranks
/// differ in an operation, they throw a Mismatch about the first such operation instead (Note [Windows]).
///
/// Only one thread at a time may call `run`; any thread may call the other functions.
class NativeQueue : public RollCall::Queue, public std::enable_shared_from_this<NativeQueue> {
 public:
  using MoveData = std::function<void(Exchange&)>;
  /// Returns the verdict that operations throw after a failure. The first thread that asks computes it.
  using Failure = std::shared_future<Verdict>;

  struct Options {
    std::string name = {};  ///< name of the queue in error messages
    Ranks ranks = {};
    c10::Device device;
    std::chrono::milliseconds timeout{};
    /// Makes the backend when the first operation needs it. Collective.
    std::function<c10::intrusive_ptr<c10d::Backend>()> connect;
    std::shared_ptr<RollCall> roll_call;
    /// Records the operations under the name `path`; null if nothing records them.
    std::shared_ptr<IssuedWindows> windows = nullptr;
    std::string path = {};
  };

  static std::shared_ptr<NativeQueue> start(Options options);

  /// Makes the backend now.
  void connect() { exchange(); }
  /// Issues an operation: now or, if there is a lane, in the lane's thread after `meet`, which returns when all ranks
  /// that take part have arrived.
  std::shared_ptr<Work> run(Fingerprint fingerprint, MoveData move_data, Lane* lane = nullptr,
                            std::function<void()> meet = nullptr);
  /// Compares with the other ranks which operations were issued so far in all queues of the device. Throws as
  /// `require_intact` does.
  void require_agreement(const std::string& operation);
  /// Throws the verdict if there was a failure. Does not wait for operations.
  void require_intact(const std::string& operation);

  std::string status() const override;
  void interrupt() override;

 private:
  class Watch;
  struct Progress;
  class Operation;

  explicit NativeQueue(Options options) : options_(std::move(options)) {}
  Exchange& exchange();
  void raise_alarm(Cause cause, const Fingerprint& fingerprint, const std::string& detail);

  static Watch& watch();
  // Looks at the oldest operation in flight and raises the alarm if it failed or its time has passed. The Watch calls
  // it.
  void look();
  void compare_windows();
  // Makes all later operations fail. Returns false if they failed already.
  bool fail(const Failure& failure);
  std::shared_ptr<Progress> oldest() const;
  Failure failure() const;
  c10::intrusive_ptr<c10d::Backend> backend() const;

  const Options options_;
  std::optional<c10::Stream> stream_;  // for memory that operations need beside the caller's tensors
  uint64_t number_ = 0;                // number of the newest operation
  std::unique_ptr<Exchange> exchange_;
  mutable Mutex mutex_;
  c10::intrusive_ptr<c10d::Backend> backend_ FSDP_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Progress>> in_flight_ FSDP_GUARDED_BY(mutex_);
  Failure failure_ FSDP_GUARDED_BY(mutex_);  // not valid before a failure
};

}  // namespace fsdp
