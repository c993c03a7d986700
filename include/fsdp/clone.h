#pragma once
/// \file
/// A second set of values for a sharded model, e.g. the moving average of its weights.

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

/// Values of the parameters and buffers of a sharded model: this rank's rows, and what is not sharded whole. One module
/// serves for both sets of values, so any module can be cloned; gradients and optimizers are the model's alone. Cheap
/// to copy: copies share the values.
///
/// What is said of every rank: each calls the same, in the same order; nothing is communicated. Between steps: throws
/// UsageError in a scope or a backward, and after fsdp::set_strategy or fsdp::to, which lay rows out anew.
class Clone {
 public:
  /// Values become decay * values + (1 - decay) * the model's, in place; what is not floating point, and buffers, the
  /// model's. Every rank.
  ///
  ///     optimizer.step();
  ///     average.update(0.999);
  void update(double decay);
  /// The model and the clone exchange their values, until the guard goes: to evaluate with the clone's, to save them as
  /// the model's, to load them. Every rank. Holds one parameter's rows more for as long as it exchanges them.
  ///
  ///     {
  ///       auto use = average.use();
  ///       evaluate(model);
  ///       fsdp::save_checkpoint("runs/a/average", model, nullptr, {.step = step});
  ///     }
  UseClone use();
  /// By the model's names, one that has several once, in the order of its module; plain tensors, which may be written.
  std::vector<std::pair<std::string, at::Tensor>> values() const;

 private:
  friend class UseClone;
  friend Clone clone(const Group& model);
  struct Values;
  explicit Clone(std::shared_ptr<Values> values);
  std::shared_ptr<Values> values_;
};

/// While it lives, the model has the clone's values, and the clone the model's. Bound to its thread. If it goes where
/// Clone::use would throw, they are exchanged for good, which is a warning.
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

/// A copy of the values that the model has now. Not collective. Throws UsageError in a scope or a backward, and for
/// parameters on the meta device.
///
///     auto average = fsdp::clone(model);
[[nodiscard]] Clone clone(const Group& model);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
