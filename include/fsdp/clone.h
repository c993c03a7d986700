#pragma once
/// \file
/// A second set of values for a sharded model, such as a moving average of its weights.

#include <ATen/core/Tensor.h>
#include <fsdp/group.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup values
/// \{

class UseClone;

/// A second set of values for the parameters and buffers of a sharded model: this rank's rows of sharded tensors, and
/// the others whole. Both sets use the same module, so any module can be cloned; gradients and optimizers belong to the
/// model only. Copies of a Clone share the values.
///
/// Every rank must make the same calls in the same order, though nothing is communicated. Call them between steps: they
/// throw UsageError in a scope or a backward, and after fsdp::set_strategy or fsdp::to, which change the layout of
/// rows.
class Clone {
 public:
  /// Sets each floating-point parameter to decay * value + (1 - decay) * the model's value, in place. Buffers and other
  /// parameters become copies of the model's. `decay` is between 0 and 1.
  ///
  ///     optimizer.step();
  ///     average.update(0.999);
  void update(double decay);
  /// Exchanges the values of the model and the clone until the guard is destroyed, to evaluate, save or load with the
  /// clone's. Every rank must call it. During the exchange it needs memory for the rows of one parameter.
  ///     {
  ///       auto use = average.use();
  ///       evaluate(model);
  ///       fsdp::save_checkpoint("runs/a/average", model, nullptr, {.step = step});
  ///     }
  UseClone use();
  /// This rank's values, as plain writable tensors, under the model's names in the order of its module. A tensor with
  /// several names appears once.
  std::vector<std::pair<std::string, at::Tensor>> values() const;

 private:
  friend class UseClone;
  friend Clone clone(const Group& model);
  struct Values;
  explicit Clone(std::shared_ptr<Values> values);
  std::shared_ptr<Values> values_;
};

/// While it lives, the model and the clone have exchanged their values. Destroy it on the thread that made it, between
/// steps; if it is destroyed where Clone::use would throw, the exchange becomes permanent and a warning says so.
class [[nodiscard]] UseClone {
 public:
  ~UseClone();
  UseClone(const UseClone&) = delete;
  UseClone& operator=(const UseClone&) = delete;

 private:
  friend class Clone;
  explicit UseClone(std::shared_ptr<Clone::Values> values);
  std::shared_ptr<Clone::Values> values_;
};

/// Copies the model's current values. Not collective. Throws UsageError in a scope or a backward, and for parameters on
/// the meta device.
///
///     auto average = fsdp::clone(model);
[[nodiscard]] Clone clone(const Group& model);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
