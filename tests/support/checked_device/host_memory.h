#pragma once
/// \file
/// Pinned memory of the host: copies from and to it run beside the host.

#include <c10/core/Allocator.h>

#include <map>
#include <string>
#include <vector>

#include "support/checked_device/timeline.h"

namespace fsdp::test::checked {

/// Finds what the host does too early: what a copy brings is there only once the host has waited for the copy, and is
/// NaN before; what a copy takes must be the same until then, and the memory must not be given back. Thread safety: all
/// of it, `read`, `write` and `settle` under device_mutex().
class HostMemory {
 public:
  static HostMemory& get();

  c10::DataPtr allocate(size_t bytes);
  /// The allocator behind `pinned_memory(true)`. As LibTorch's own for accelerators it hands memory out again when the
  /// copies that use it are over, so the host may give it back before.
  static c10::Allocator& caching();
  bool is_pinned(const void* address) const;

  /// A copy takes these bytes.
  void read(char* begin, size_t bytes, Stamp stamp, std::string place);
  /// A copy has brought these bytes.
  void write(char* begin, size_t bytes, Stamp stamp, std::string place);
  /// What copies have taken and brought since it was asked last. Without device_mutex().
  struct Bytes {
    size_t to_device = 0, to_host = 0;
  };
  Bytes take_bytes();
  /// A copy is about to take these bytes, on a stream that knows `known`: what copies before it bring is there.
  void bring(const char* begin, size_t bytes, const VectorClock& known);
  /// The host has waited for what `known` knows.
  void settle(const VectorClock& known);
  /// Nothing is under way any more.
  void forget_copies();

 private:
  struct Copy {
    char* begin;
    std::vector<char> values;
    Stamp stamp;
    bool writes;
    std::string place;
  };
  class Caching;
  void settle(Copy& copy);
  static void give_back(void* block);
  static void give_back_at_any_time(void* block);

  std::map<const char*, size_t> blocks_;
  std::vector<Copy> under_way_;
  Bytes bytes_;
};

}  // namespace fsdp::test::checked
