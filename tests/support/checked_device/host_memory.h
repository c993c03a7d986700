#pragma once
/// \file
/// Pinned memory of the host. Copies from and to it run beside the host.

#include <c10/core/Allocator.h>

#include <map>
#include <string>
#include <vector>

#include "support/checked_device/timeline.h"

namespace fsdp::test::checked {

/// Finds what the host does too early. What a copy brings is NaN until the host has waited for the copy. What a copy
/// takes must stay unchanged until then, and the memory must not be given back. Thread safety: all of it; `read`,
/// `write`, `bring` and `settle` under device_mutex().
class HostMemory {
 public:
  static HostMemory& get();

  c10::DataPtr allocate(size_t bytes);
  /// The allocator behind `pinned_memory(true)`. Like LibTorch's allocators for accelerators, it hands memory out again
  /// only when the copies that use it are over, so the host may give memory back earlier.
  static c10::Allocator& caching();
  bool is_pinned(const void* address) const;

  /// Notes that a copy takes these bytes.
  void read(char* begin, size_t bytes, Stamp stamp, std::string place);
  /// Notes that a copy has brought these bytes.
  void write(char* begin, size_t bytes, Stamp stamp, std::string place);
  /// How much copies took and brought since the last call. Call it without device_mutex().
  struct Bytes {
    size_t to_device = 0, to_host = 0;
  };
  Bytes take_bytes();
  /// Called when a copy is about to take these bytes on a stream that knows `known`: delivers what earlier copies
  /// bring.
  void bring(const char* begin, size_t bytes, const VectorClock& known);
  /// Called when the host has waited for everything that `known` knows.
  void settle(const VectorClock& known);
  /// Completes all copies that are under way.
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
