#pragma once
/// \file
/// What a device's own backend carries, in the order in which it is issued.

#include <fsdp/communicator.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/c10d/exchange.h"
#include "comm/c10d/issued_windows.h"
#include "comm/c10d/lane.h"
#include "comm/core/fingerprint.h"
#include "comm/core/ranks.h"
#include "comm/failure/roll_call.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace fsdp {

/// One order of operations over one c10d backend. On an accelerator an operation is an event: it comes after what the
/// caller's current stream had been given when it was called, or after the one that it follows (`Work::then`), and what
/// a stream is given after `Work::wait()` comes after it. No thread of the host waits for it.
///
/// Note [Tensors that cross streams]: an allocator hands memory out again on the stream that it was taken on as soon as
/// the host lets it go. So the tensors of an operation, which `move_data` holds, are kept until the caller's stream has
/// been made to wait for the operation: by `Work::wait()`, or when the Work is dropped. What an operation takes for
/// itself lies on a stream that the order has as long as it lives.
///
/// Note [A failure on a device]: DeviceWatch looks after what was issued. When it finds an error or a passed deadline,
/// or when the roll call has a verdict, every order of the device fails with that verdict, and then all their backends
/// are aborted at once: a kernel may wait for one of another communicator, and the host for any. What is in flight and
/// what comes later throws the verdict; where ranks went on as far as they can and the verdict names no lost rank, the
/// first operation in which they differ (Note [Windows]).
///
/// Thread safety: `run` and `run_in` from one thread at a time.
class NativeOrder {
 public:
  using Connect = std::function<c10::intrusive_ptr<c10d::Backend>()>;
  using MoveData = std::function<void(Exchange&)>;

  struct Options {
    std::string name = {};  ///< stands in errors
    Ranks ranks = {};
    c10::Device device = c10::kCPU;
    std::chrono::milliseconds timeout{};
    /// Where what is issued is noted, and as which order's; null: nowhere.
    std::shared_ptr<IssuedWindows> windows = nullptr;
    std::string path = {};
  };

  /// `wire`: of the lane in which operations on the CPU run, whose deadline holds for them.
  NativeOrder(Connect connect, std::shared_ptr<const Wire> wire, std::shared_ptr<RollCall> roll_call, Options options);
  ~NativeOrder();

  /// Connects now; the first operation does it otherwise. Collective.
  void connect();
  /// Issues an operation on an accelerator.
  std::shared_ptr<Work> run(Fingerprint fingerprint, MoveData move_data);
  /// The same in the lane's thread after `meet`, which returns when the ranks that it concerns are there; also on the
  /// CPU, where the lane waits.
  std::shared_ptr<Work> run_in(Lane& lane, const Fingerprint& fingerprint, std::function<void()> meet,
                               MoveData move_data);
  /// Compares with the other ranks what was issued so far in all orders of the device; throws as `require_intact`.
  void require_agreement(const std::string& operation) const;
  /// Throws the verdict after a failure. Waits for nothing.
  void require_intact(const std::string& operation) const;

 private:
  struct Progress;
  class State;
  struct Operation;
  class EventWork;

  const std::shared_ptr<State> state_;
};

}  // namespace fsdp
