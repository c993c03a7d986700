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
/// the whole of other tensors. Both sets use the same module, so any module can be cloned; gradients and optimizers
/// belong to the model only. Copies of a Clone share the values.
///
/// The functions communicate nothing, but every rank must make the same calls in the same order. Call `update` and
/// `use` between steps: they throw UsageError in a scope or a backward, and after fsdp::set_strategy or fsdp::to has
/// changed the layout, device or dtype of the rows.
class Clone {
 public:
  /// Sets the clone's value of each floating-point parameter to decay * value + (1 - decay) * the model's value, in
  /// place. Buffers and other parameters get the model's values. `decay` must be from 0 to 1; otherwise UsageError is
  /// thrown.
  ///
  ///     optimizer.step();
  ///     average.update(0.999);
  void update(double decay);
  /// Exchanges the values of the model and the clone until the guard is destroyed, so that you can evaluate, save or
  /// load with the clone's values. Every rank must call this function. An exchange needs memory for this rank's rows of
  /// one parameter.
  ///     {
  ///       auto use = average.use();
  ///       evaluate(model);
  ///       fsdp::save_checkpoint("runs/a/average", model, nullptr, {.step = step});
  ///     }
  UseClone use();
  /// Returns the clone's values on this rank, as plain writable tensors with the model's names, in the order of its
  /// module. A tensor with several names appears once.
  std::vector<std::pair<std::string, at::Tensor>> values() const;

 private:
  friend class UseClone;
  friend Clone clone(const Group& model);
  struct Values;
  explicit Clone(std::shared_ptr<Values> values);
  std::shared_ptr<Values> values_;
};

/// Guard of Clone::use: the values of the model and the clone are exchanged while the guard lives. Destroy it on the
/// thread that made it, between steps. If it is destroyed where Clone::use would throw, the exchange becomes permanent,
/// and the library prints a warning.
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

/// Makes a clone that has copies of the model's current values. Not collective. Throws UsageError in a scope or a
/// backward, and for parameters on the meta device.
///
///     auto average = fsdp::clone(model);
[[nodiscard]] Clone clone(const Group& model);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
