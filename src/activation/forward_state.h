#pragma once
/// \file
/// State that a forward depends on besides its inputs and parameters.

#include <ATen/core/Tensor.h>

#include <span>
#include <utility>
#include <vector>

namespace fsdp::activation {

/// Returns the devices from whose default generators a region may draw random numbers: the CPU, the devices of its
/// inputs on the accelerator, and the accelerator's current device.
std::vector<at::Device> devices_of(std::span<const at::Tensor> inputs);

/// States of the default generators of several devices.
class RandomStates {
 public:
  /// Saves the current states.
  explicit RandomStates(std::span<const at::Device> devices);
  /// Returns the current states of the same generators.
  RandomStates now() const;
  /// Sets the generators to the saved states.
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
  /// Restores the saved settings.
  void restore() const;
  /// Restores the saved settings but disables autocast's cache. Otherwise casts of parameters would stay in the cache
  /// after backward, even when the parameters are written.
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

/// Guard whose destructor calls the function restore() of a `State`.
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
