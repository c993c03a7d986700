#pragma once
/// \file
/// Pinned host memory. Copies between it and the device run asynchronously to the host.

#include <c10/core/Allocator.h>

#include <map>
#include <string>
#include <vector>

#include "support/checked_device/timeline.h"

namespace fsdp::test::checked {

/// Finds accesses that the host makes too early. The destination of a copy to the host holds NaN until the host has
/// waited for the copy. The source of a copy to the device must stay unchanged and allocated until then. Thread safety:
/// any thread may call any member; callers of `read`, `write`, `bring` and `settle` must hold device_mutex().
class HostMemory {
 public:
  static HostMemory& get();

  c10::DataPtr allocate(size_t bytes);
  /// Returns the allocator behind `pinned_memory(true)`. Like LibTorch's allocators for accelerators, it reuses memory
  /// only after the copies that use it, so the host may free memory before a copy is over.
  static c10::Allocator& caching();
  bool is_pinned(const void* address) const;

  /// Notes that a copy to the device reads these bytes.
  void read(char* begin, size_t bytes, Stamp stamp, std::string place);
  /// Notes that a copy to the host has written these bytes.
  void write(char* begin, size_t bytes, Stamp stamp, std::string place);
  /// Numbers of bytes copied in each direction since the last call of take_bytes(). The caller of take_bytes() must not
  /// hold device_mutex().
  struct Bytes {
    size_t to_device = 0, to_host = 0;
  };
  Bytes take_bytes();
  /// Delivers the values that earlier copies write to these bytes. It is called before a copy reads them on a stream
  /// that knows `known`.
  void bring(const char* begin, size_t bytes, const VectorClock& known);
  /// Completes all copies that `known` contains. It is called when the host has waited for them.
  void settle(const VectorClock& known);
  /// Completes all pending copies.
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
