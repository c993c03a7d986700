#pragma once
/// \file
/// State that a forward depends on besides its inputs and parameters.

#include <ATen/core/Tensor.h>

#include <span>
#include <utility>
#include <vector>

namespace fsdp::activation {

/// The devices from whose default generators a region may draw: the CPU, the devices of its inputs on the accelerator,
/// and the accelerator's current device.
std::vector<at::Device> devices_of(std::span<const at::Tensor> inputs);

/// States of the default generators of several devices.
class RandomStates {
 public:
  /// Saves the current states.
  explicit RandomStates(std::span<const at::Device> devices);
  /// The current states of the same generators.
  RandomStates now() const;
  void restore() const;

 private:
  RandomStates() = default;
  std::vector<std::pair<at::Device, at::Tensor>> states_;
};

/// This thread's autocast settings for all device types.
class AutocastState {
 public:
  /// Saves the current settings.
  AutocastState();
  void restore() const;
  /// Restores the settings but disables autocast's cache: backward would keep the cached casts, even after parameters
  /// were written.
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

/// Restores a `State` in its destructor.
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
