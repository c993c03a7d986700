#pragma once
/// \file
/// The device's memory: blocks that go back to the stream they were taken on, and who uses them.

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

/// As CUDA's: a block is taken on the current stream of the current device, and when the host lets it go, that stream
/// may have it again at once, the one that came back last first. Streams that `record` named hold it back: they are
/// over by the time that it is handed out again. A block comes full of NaN. Thread safety: all of it.
class CachingAllocator : public c10::Allocator {
 public:
  static CachingAllocator& get();

  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override;

  /// From now on each device has no more than so many bytes, rounded up block by block; none: as many as are asked for.
  void set_limit(std::optional<size_t> bytes);
  /// The block may be used on the stream when it is given back. Nothing for memory that others hand on.
  void record(const c10::DataPtr& memory, const c10::Stream& stream);
  /// Where an address lies; the first device for one that is not the device's.
  c10::Device device_of(const void* address);
  /// Notes the use of [begin, begin + bytes) by a tensor of `device`; `known`: what `access` comes after. Under
  /// device_mutex().
  void note(const char* begin, size_t bytes, c10::Device device, Access access, const VectorClock& known);
  /// What was used until now, or given to any stream, is over.
  void forget_uses();

 private:
  struct Block;
  static void give_back(void* block);
  void take_back(Block& block);
  void return_recorded();
  Block* block_at(const void* address);

  std::map<const char*, std::unique_ptr<Block>> blocks_;
  std::map<std::tuple<c10::DeviceIndex, c10::StreamId, size_t>, std::vector<Block*>> spare_;  // by stream and bytes
  std::vector<Block*> recorded_;             // given back, on their way to spare_
  std::map<c10::DeviceIndex, size_t> held_;  // bytes that were not given back
  std::optional<size_t> limit_;
};

}  // namespace fsdp::test::checked
