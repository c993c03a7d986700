#pragma once
/// \file
/// What a forward depends on beside its inputs and parameters.

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace fsdp::activation {

/// The states of the default generators: the CPU's, and that of the accelerator that this thread uses.
class RandomStates {
 public:
  /// As they are now.
  RandomStates();
  void restore() const;

 private:
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
struct Restored {
  State before;
  ~Restored() { before.restore(); }
};

}  // namespace fsdp::activation
