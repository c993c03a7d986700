#pragma once
/// \file
/// The device's caching allocator. It returns each block to the stream on which the block was allocated, and
/// records who uses it.

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "support/checked_device/access_history.h"

namespace fsdp::test::checked {

/// Works as CUDA's caching allocator does. A block is allocated on the current stream of the current device. When the
/// host frees it, the same stream may get it again at once; the block that was freed last is handed out first. A block
/// that was given to record() is held back until the recorded streams' work is over. A new block is full of NaN. Thread
/// safety: any thread may call any member.
class CachingAllocator : public c10::Allocator {
 public:
  static CachingAllocator& get();

  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override;

  /// Limits each device to this many bytes; each block counts with its rounded size. nullopt removes the limit.
  void set_limit(std::optional<size_t> bytes);
  /// Notes that the stream may still use the block when the host frees it. Ignores memory of other allocators.
  void record(const c10::DataPtr& memory, const c10::Stream& stream);
  /// Returns the device on which an address lies, or the first device if the allocator does not own the address.
  c10::Device device_of(const void* address);
  /// Notes that a tensor on `device` uses [begin, begin + bytes). `known` holds the operations that precede `access`.
  /// The caller must hold device_mutex().
  void note(const char* begin, size_t bytes, c10::Device device, Access access, const VectorClock& known);
  /// Declares that all uses and all operations on streams are over.
  void forget_uses();

 private:
  struct Block;
  static void give_back(void* block);
  void take_back(Block& block);
  void return_recorded();
  Block* block_at(const void* address);

  std::map<const char*, std::unique_ptr<Block>> blocks_;
  // keyed by stream and bytes
  std::map<std::tuple<c10::DeviceIndex, c10::StreamId, size_t>, std::vector<Block*>> spare_;
  std::vector<Block*> recorded_;             // freed blocks that are not yet in spare_
  std::map<c10::DeviceIndex, size_t> held_;  // number of bytes that are handed out
  std::optional<size_t> limit_;
};

}  // namespace fsdp::test::checked
