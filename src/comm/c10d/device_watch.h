#pragma once
/// \file
/// The thread that looks after what goes on on accelerators.

#include <c10/core/Device.h>

#include "comm/failure/verdict.h"

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace fsdp {

/// One per process, of_this_process<DeviceWatch>(). It looks a few times a second at the oldest operation of each order
/// that has one in flight, and sleeps otherwise. See Note [A failure on a device]. Thread safety: all of it.
class DeviceWatch {
 public:
  /// Gives the verdict that operations throw after a failure.
  using Failure = std::function<Verdict()>;

  /// An order of operations on a device.
  class Order {
   public:
    virtual ~Order() = default;
    virtual c10::Device device() const = 0;
    /// Looks at the oldest operation in flight and raises the alarm if there is reason. Returns whether any is left.
    virtual bool look() = 0;
    /// Compares what was issued with the other ranks, see Note [Windows].
    virtual void compare() = 0;
    /// From now on operations fail. False if they did before.
    virtual bool fail(const Failure& failure) = 0;
    /// Ends what is in flight. Called after `fail`, from a thread of its own, as the next one is.
    virtual void abort() = 0;
    /// Tells the other ranks of this order the verdict. The failure may have been found among other ranks, so they may
    /// not know of it yet.
    virtual void pass_on(const Verdict& verdict) = 0;
  };

  void add(std::weak_ptr<Order> order);
  /// An order has gone.
  void note_gone();
  /// Something was issued.
  void note_issued();
  /// Compares with the other ranks what was issued in every order of the device.
  void compare_all(c10::Device device);
  /// Every order of the device fails, and then all are aborted at once. Returns when the aborts have returned, or after
  /// some seconds.
  void fail_all(c10::Device device, const Failure& failure);

 private:
  std::vector<std::shared_ptr<Order>> orders();
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::weak_ptr<Order>> orders_;
  bool runs_ = false, is_needed_ = false, has_gone_ = false;
};

}  // namespace fsdp
