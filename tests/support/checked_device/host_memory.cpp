#include "support/checked_device/host_memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "support/checked_device/findings.h"
#include "support/checked_device/timeline.h"

namespace fsdp::test::checked {
namespace {

constexpr size_t kAlignment = 64;
constexpr const char* kWaitAdvice = "Let the host wait for an event that is recorded after the copy";

}  // namespace

HostMemory& HostMemory::get() {
  static auto* memory = new HostMemory;  // never destroyed: see device_mutex()
  return *memory;
}

c10::DataPtr HostMemory::allocate(size_t bytes) {
  const size_t rounded = std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  auto* block = static_cast<char*>(std::aligned_alloc(kAlignment, rounded));
  std::memset(block, 0xff, rounded);
  const std::lock_guard lock(device_mutex());
  blocks_.emplace(block, rounded);
  return {block, block, &give_back, c10::kCPU};
}

void HostMemory::give_back(void* block) {
  const std::lock_guard lock(device_mutex());
  auto& blocks = get().blocks_;
  auto* begin = static_cast<char*>(block);
  const auto place = blocks.find(begin);
  std::erase_if(get().under_way_, [&](const Copy& copy) {
    const bool is_inside = copy.begin >= begin && copy.begin < begin + place->second;
    if (is_inside) report(Fault::kEarlyFree, copy.place, "pinned memory is given back", kWaitAdvice);
    return is_inside;
  });
  blocks.erase(place);
  std::free(block);
}

bool HostMemory::is_pinned(const void* address) const {
  const std::lock_guard lock(device_mutex());
  const auto* place = static_cast<const char*>(address);
  const auto next = blocks_.upper_bound(place);
  return next != blocks_.begin() && place < std::prev(next)->first + std::prev(next)->second;
}

void HostMemory::read(char* begin, size_t bytes, Stamp stamp, std::string place) {
  bytes_.to_device += bytes;
  under_way_.push_back({begin, {begin, begin + bytes}, stamp, false, std::move(place)});
}

void HostMemory::write(char* begin, size_t bytes, Stamp stamp, std::string place) {
  bytes_.to_host += bytes;
  under_way_.push_back({begin, {begin, begin + bytes}, stamp, true, std::move(place)});
  std::memset(begin, 0xff, bytes);
}

HostMemory::Bytes HostMemory::take_bytes() {
  const std::lock_guard lock(device_mutex());
  return std::exchange(bytes_, {});
}

void HostMemory::bring(const char* begin, size_t bytes, const VectorClock& known) {
  std::erase_if(under_way_, [&](Copy& copy) {
    const bool is_brought =
        copy.writes && copy.begin < begin + bytes && begin < copy.begin + copy.values.size() && known.knows(copy.stamp);
    if (is_brought) settle(copy);
    return is_brought;
  });
}

void HostMemory::settle(Copy& copy) {
  if (copy.writes)
    std::memcpy(copy.begin, copy.values.data(), copy.values.size());
  else if (std::memcmp(copy.begin, copy.values.data(), copy.values.size()) != 0)
    report(Fault::kUnordered, copy.place, "the host overwrites its source", kWaitAdvice);
}

void HostMemory::settle(const VectorClock& known) {
  std::erase_if(under_way_, [&](Copy& copy) {
    const bool is_over = known.knows(copy.stamp);
    if (is_over) settle(copy);
    return is_over;
  });
}

void HostMemory::forget_copies() {
  const std::lock_guard lock(device_mutex());
  for (auto& copy : under_way_) settle(copy);
  under_way_.clear();
}

void HostMemory::give_back_at_any_time(void* block) {
  {
    const std::lock_guard lock(device_mutex());
    const auto* begin = static_cast<const char*>(block);
    const auto* end = begin + get().blocks_.at(begin);
    std::erase_if(get().under_way_, [&](const Copy& copy) { return copy.begin >= begin && copy.begin < end; });
  }
  give_back(block);
}

class HostMemory::Caching : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    auto* block = get().allocate(bytes).release_context();
    return {block, block, &give_back_at_any_time, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back_at_any_time; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

c10::Allocator& HostMemory::caching() {
  static auto* allocator = new Caching;
  return *allocator;
}

}  // namespace fsdp::test::checked
