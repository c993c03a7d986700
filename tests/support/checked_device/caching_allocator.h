#pragma once
/// \file
/// The device's memory: blocks that return to the stream they were taken on, and the record of who uses them.

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

/// Works as CUDA's does. A block is taken on the current stream of the current device. When the host lets it go, that
/// stream may have it again at once, and the block that came back last is handed out first. Streams named by `record`
/// hold it back: their work is over by the time it is handed out again. A new block is full of NaN. Thread safety: all
/// of it.
class CachingAllocator : public c10::Allocator {
 public:
  static CachingAllocator& get();

  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override;

  /// Limits each device to this many bytes, with each block rounded up; nullopt lifts the limit.
  void set_limit(std::optional<size_t> bytes);
  /// Notes that the stream may still use the block when it is given back. Ignores memory of other allocators.
  void record(const c10::DataPtr& memory, const c10::Stream& stream);
  /// The device on which an address lies; the first device if the address is not the device's.
  c10::Device device_of(const void* address);
  /// Notes that a tensor of `device` uses [begin, begin + bytes). `known` is what `access` comes after. Call under
  /// device_mutex().
  void note(const char* begin, size_t bytes, c10::Device device, Access access, const VectorClock& known);
  /// Declares all uses until now, and all operations given to any stream, to be over.
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
  std::vector<Block*> recorded_;             // given back, not yet in spare_
  std::map<c10::DeviceIndex, size_t> held_;  // bytes that were not given back yet
  std::optional<size_t> limit_;
};

}  // namespace fsdp::test::checked
