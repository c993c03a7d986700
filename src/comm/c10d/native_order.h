#pragma once
/// \file
/// What an accelerator's own backend carries, in the order in which it is issued.

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

/// One order of operations over one c10d backend. An operation is an event: it comes after what the caller's current
/// stream had been given when it was called, or after the one that it follows (`Work::then`), and what a stream is
/// given after `Work::wait()` comes after it. No thread of the host waits for it.
///
/// Note [Tensors that cross streams]: an allocator hands memory out again on the stream that it was taken on as soon as
/// the host lets it go. So the tensors of an operation, which `move_data` holds, are kept until the caller's stream has
/// been made to wait for the operation: by `Work::wait()`, or when the Work is dropped. What an operation takes for
/// itself lies on a stream that the order has as long as it lives.
///
/// Note [A failure on a device]: a thread watches what was issued. When it finds an error or a passed deadline,
/// or when the roll call has a verdict, every order of the device fails with that verdict, and then all their backends
/// are aborted at once: a kernel may wait for one of another communicator, and the host for any. What is in flight and
/// what comes later throws the verdict; where ranks went on as far as they can and the verdict names no lost rank, the
/// first operation in which they differ (Note [Windows]).
///
/// Thread safety: `run` and `run_in` from one thread at a time; the others from any.
class NativeOrder : public RollCall::Order, public std::enable_shared_from_this<NativeOrder> {
 public:
  using MoveData = std::function<void(Exchange&)>;
  /// Gives the verdict that operations throw after a failure; whoever asks first finds it out.
  using Failure = std::shared_future<Verdict>;

  struct Options {
    std::string name = {};  ///< stands in errors
    Ranks ranks = {};
    c10::Device device;
    std::chrono::milliseconds timeout{};
    /// Makes the backend, with the first operation. Collective.
    std::function<c10::intrusive_ptr<c10d::Backend>()> connect;
    std::shared_ptr<RollCall> roll_call;
    /// Where what is issued is noted, and as which order's; null: nowhere.
    std::shared_ptr<IssuedWindows> windows = nullptr;
    std::string path = {};
  };

  static std::shared_ptr<NativeOrder> start(Options options);

  /// Connects now.
  void connect() { exchange(); }
  std::shared_ptr<Work> run(Fingerprint fingerprint, MoveData move_data);
  /// Issues it in the lane's thread, after `meet`, which returns when the ranks that it concerns are there.
  std::shared_ptr<Work> run_in(Lane& lane, const Fingerprint& fingerprint, std::function<void()> meet,
                               MoveData move_data);
  /// Compares with the other ranks what was issued so far in all orders of the device; throws as `require_intact`.
  void require_agreement(const std::string& operation);
  /// Throws the verdict after a failure. Waits for no operation.
  void require_intact(const std::string& operation);

  std::string status() const override;
  void interrupt() override;

 private:
  class Watch;
  struct Progress;
  class Operation;

  explicit NativeOrder(Options options) : options_(std::move(options)) {}
  Exchange& exchange();
  std::shared_ptr<Operation> prepare(Fingerprint fingerprint, MoveData move_data);
  void raise_alarm(Cause cause, const Fingerprint& fingerprint, const std::string& detail);

  static Watch& watch();
  // What the watch calls. Looks at the oldest operation in flight, and raises the alarm if there is reason.
  void look();
  void compare_windows();
  // From now on operations fail. False if they did before.
  bool fail(const Failure& failure);
  // Ends what is in flight, after `fail`.
  void abort();
  std::shared_ptr<Progress> oldest() const;
  Failure failure() const;

  const Options options_;
  std::optional<c10::Stream> stream_;  // for what operations need beside the caller's tensors
  uint64_t number_ = 0;                // of the newest operation
  mutable Mutex mutex_;
  c10::intrusive_ptr<c10d::Backend> backend_ FSDP_GUARDED_BY(mutex_);
  std::unique_ptr<Exchange> exchange_ FSDP_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Progress>> in_flight_ FSDP_GUARDED_BY(mutex_);
  Failure failure_ FSDP_GUARDED_BY(mutex_);  // not valid: there is none
};

}  // namespace fsdp
