#include "support/checked_device/operation.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "support/checked_device/caching_allocator.h"
#include "support/checked_device/findings.h"
#include "support/checked_device/host_memory.h"
#include "support/checked_device/timeline.h"

namespace fsdp::test::checked {
namespace {

struct Stretch {
  const char* begin;
  size_t bytes;
};

// Returns the contiguous stretches of memory that a tensor uses. If there are very many, it returns the one range that
// encloses them.
std::vector<Stretch> stretches_of(const at::Tensor& tensor) {
  constexpr int64_t kMost = 4096;
  if (tensor.numel() == 0) return {};
  std::vector<std::pair<int64_t, int64_t>> dims;  // (stride, size)
  for (int64_t dim = 0; dim < tensor.dim(); ++dim)
    if (tensor.size(dim) > 1 && tensor.stride(dim) != 0) dims.emplace_back(tensor.stride(dim), tensor.size(dim));
  std::ranges::sort(dims);
  int64_t run = 1, count = 1;  // numbers of elements and of stretches
  auto outer = dims.begin();
  for (; outer != dims.end() && outer->first <= run; ++outer) run += (outer->second - 1) * outer->first;
  for (auto dim = outer; dim != dims.end(); ++dim) count *= dim->second;
  if (count > kMost) {
    for (; outer != dims.end(); ++outer) run += (outer->second - 1) * outer->first;
  }
  const auto element = tensor.element_size();
  std::vector<Stretch> found{{static_cast<const char*>(tensor.const_data_ptr()), static_cast<size_t>(run) * element}};
  for (; outer != dims.end(); ++outer) {
    const size_t inner = found.size();
    for (int64_t i = 1; i < outer->second; ++i)
      for (size_t j = 0; j < inner; ++j)
        found.push_back(
            {found[j].begin + i * outer->first * static_cast<int64_t>(element), static_cast<size_t>(run) * element});
  }
  return found;
}

}  // namespace

Stamp note_operation(const std::string& name, const c10::Stream& stream, std::span<const Operand> operands) {
  std::lock_guard lock(device_mutex());
  auto& timeline = Timeline::get();
  const Stamp stamp = timeline.launch(stream);
  const std::string place = place_of(name, stream);
  for (const auto& [tensor, writes] : operands) {
    if (!tensor.defined() || !tensor.is_privateuseone()) continue;
    for (const auto& [begin, bytes] : stretches_of(tensor))
      CachingAllocator::get().note(begin, bytes, tensor.device(), {stamp, writes, 0, place}, timeline.of(stream));
  }
  return stamp;
}

void note_host_wait(const std::string& name, const c10::Stream& stream) {
  count_host_wait(name, stream);
  const VectorClock clock = [&] {
    std::lock_guard lock(device_mutex());
    return Timeline::get().of(stream);
  }();
  wait_for_hangs(clock);
  std::lock_guard lock(device_mutex());
  Timeline::of_this_thread().join(clock);
  HostMemory::get().settle(Timeline::of_this_thread());
}

}  // namespace fsdp::test::checked
