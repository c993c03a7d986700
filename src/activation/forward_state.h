#pragma once
/// \file
/// What a forward depends on beside its inputs and parameters.

#include <ATen/core/Tensor.h>

#include <span>
#include <utility>
#include <vector>

namespace fsdp::activation {

/// The devices whose default generators a part may draw from: the CPU, those of its inputs on the accelerator, and the
/// accelerator's device that this thread uses.
std::vector<at::Device> devices_of(std::span<const at::Tensor> inputs);

/// The states of devices' default generators.
class RandomStates {
 public:
  /// As they are now.
  explicit RandomStates(std::span<const at::Device> devices);
  /// Of the same generators, as they are now.
  RandomStates now() const;
  void restore() const;

 private:
  RandomStates() = default;
  std::vector<std::pair<at::Device, at::Tensor>> states_;
};

/// Autocast of this thread, on every kind of device.
class AutocastState {
 public:
  /// As it is now.
  AutocastState();
  void restore() const;
  /// Without the cache of what was cast: backward would keep it, also after parameters were written.
  void restore_uncached() const;

 private:
  struct Setting {
    at::DeviceType type;
    bool enabled;
    at::ScalarType dtype;
  };
  std::vector<Setting> settings_;
  bool is_cached_;
};

/// Puts `State` back when it goes.
template <class State>
class Restored {
 public:
  explicit Restored(State before) : before_(std::move(before)) {}
  ~Restored() { before_.restore(); }
  Restored(const Restored&) = delete;
  Restored& operator=(const Restored&) = delete;

 private:
  const State before_;
};

}  // namespace fsdp::activation
