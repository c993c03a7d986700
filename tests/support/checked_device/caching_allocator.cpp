#include "support/checked_device/caching_allocator.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "support/checked_device/device_guard.h"
#include "support/checked_device/findings.h"
#include "support/checked_device/timeline.h"

namespace fsdp::test::checked {
namespace {

constexpr size_t kRound = 512;
constexpr const char* kKeepAdvice = "Keep the tensor until the stream that allocated it waits for the other stream";

std::tuple<c10::DeviceIndex, c10::StreamId, size_t> shelf_of(const c10::Stream& stream, size_t bytes) {
  return {stream.device_index(), stream.id(), bytes};
}

}  // namespace

struct CachingAllocator::Block {
  explicit Block(const c10::Stream& on) : stream(on) {}

  char* begin = nullptr;
  size_t bytes = 0;
  c10::Stream stream;
  int life = 0;
  bool is_free = false;
  std::string last;  // the operation that allocated or freed the block
  std::vector<c10::Stream> recorded;
  AccessHistory history;
};

CachingAllocator& CachingAllocator::get() {
  static auto* allocator = new CachingAllocator;  // never destroyed: see device_mutex()
  return *allocator;
}

c10::DeleterFnPtr CachingAllocator::raw_deleter() const { return &give_back; }

void CachingAllocator::copy_data(void* to, const void* from, std::size_t bytes) const {
  default_copy_data(to, from, bytes);
}

c10::DataPtr CachingAllocator::allocate(size_t bytes) {
  const c10::impl::VirtualGuardImpl device(kType);
  const c10::Device current = device.getDevice();
  if (bytes == 0) return {nullptr, nullptr, &give_back, current};
  const c10::Stream stream = device.getStream(current);
  const size_t rounded = (bytes + kRound - 1) / kRound * kRound;
  std::lock_guard lock(device_mutex());
  return_recorded();
  auto& held = held_[current.index()];
  TORCH_CHECK_WITH(OutOfMemoryError, !limit_ || held + rounded <= *limit_, current, " has ", *limit_,
                   " bytes, of which ", held, " are in use; ", rounded, " more were asked for");
  held += rounded;
  auto& spare = spare_[shelf_of(stream, rounded)];
  Block* block = nullptr;
  if (spare.empty()) {
    auto made = std::make_unique<Block>(stream);
    made->begin = static_cast<char*>(std::aligned_alloc(kRound, rounded));
    made->bytes = rounded;
    block = made.get();
    blocks_.emplace(block->begin, std::move(made));
  } else {
    block = spare.back();
    spare.pop_back();
  }
  block->is_free = false;
  ++block->life;
  block->last = place_of("allocation", stream);
  std::memset(block->begin, 0xff, rounded);
  return {block->begin, block, &give_back, current};
}

void CachingAllocator::give_back(void* block) {
  if (block == nullptr) return;
  std::lock_guard lock(device_mutex());
  get().take_back(*static_cast<Block*>(block));
}

void CachingAllocator::take_back(Block& block) {
  auto& timeline = Timeline::get();
  VectorClock known = timeline.of(block.stream);
  known.join(Timeline::of_this_thread());
  for (const auto& stream : block.recorded) known.join(timeline.of(stream));
  block.is_free = true;
  held_[block.stream.device_index()] -= block.bytes;
  block.last = place_of("given back", block.stream);
  block.history.visit_all([&](const Access& use) {
    if (use.life == block.life && !known.knows(use.stamp))
      report(Fault::kEarlyFree, use.place, block.last, kKeepAdvice);
  });
  if (block.recorded.empty())
    spare_[shelf_of(block.stream, block.bytes)].push_back(&block);
  else
    recorded_.push_back(&block);
}

void CachingAllocator::return_recorded() {
  for (Block* block : recorded_) {
    block->history.clear();  // uses that were not over have been reported
    block->recorded.clear();
    spare_[shelf_of(block->stream, block->bytes)].push_back(block);
  }
  recorded_.clear();
}

void CachingAllocator::set_limit(std::optional<size_t> bytes) {
  std::lock_guard lock(device_mutex());
  limit_ = bytes;
}

void CachingAllocator::record(const c10::DataPtr& memory, const c10::Stream& stream) {
  if (memory.get() == nullptr || memory.get_deleter() != &give_back) return;
  std::lock_guard lock(device_mutex());
  auto& block = *static_cast<Block*>(memory.get_context());
  if (stream != block.stream) block.recorded.push_back(stream);
}

CachingAllocator::Block* CachingAllocator::block_at(const void* address) {
  const auto* place = static_cast<const char*>(address);
  auto next = blocks_.upper_bound(place);
  if (next == blocks_.begin()) return nullptr;
  auto& block = *std::prev(next)->second;
  return place < block.begin + block.bytes ? &block : nullptr;
}

c10::Device CachingAllocator::device_of(const void* address) {
  std::lock_guard lock(device_mutex());
  const Block* block = block_at(address);
  return block == nullptr ? c10::Device(kType, 0) : block->stream.device();
}

void CachingAllocator::note(const char* begin, size_t bytes, c10::Device device, Access access,
                            const VectorClock& known) {
  Block* block = block_at(begin);
  if (block == nullptr) return;
  if (block->stream.device() != device)
    report(Fault::kWrongDevice, block->last, access.place,
           c10::str("The tensor is on ", device, ": make that the current device before allocating it"));
  if (block->is_free) report(Fault::kEarlyFree, block->last, access.place, kKeepAdvice);
  access.life = block->life;
  const auto first = static_cast<size_t>(begin - block->begin);
  block->history.note(first, first + bytes, access, [&](const Access& earlier) {
    if (known.knows(earlier.stamp)) return;
    if (earlier.life == block->life)
      report(Fault::kUnordered, earlier.place, access.place,
             "Let the later stream wait for an event that the earlier one records");
    else
      report(Fault::kReuse, earlier.place, access.place + " in the same memory, from " + block->last, kKeepAdvice);
  });
}

void CachingAllocator::forget_uses() {
  std::lock_guard lock(device_mutex());
  return_recorded();
  for (auto& [begin, block] : blocks_) block->history.clear();
  Timeline::get().forget();
}

}  // namespace fsdp::test::checked
