#include "runtime/runs.h"

#include "memory/flat_buffer.h"

namespace fsdp::runtime {
namespace {

bool share_a_run(const Extent& a, const Extent& b) {
  if (!a.is_updated || !b.is_updated || a.kernel_key != b.kernel_key) return false;
  if (a.locations.size() != b.locations.size()) return false;
  const int64_t distance = b.locations[0].first - a.locations[0].first;
  for (size_t i = 0; i < a.locations.size(); ++i) {
    const Location &from = a.locations[i], &to = b.locations[i];
    if (from.block == 0 || from.block != to.block || to.first - from.first != distance) return false;
  }
  return true;
}

int64_t first_element(const at::Tensor& tensor, const memory::FlatBuffer& buffer) {
  const auto bytes = static_cast<const char*>(tensor.const_data_ptr()) - static_cast<const char*>(buffer.data());
  return bytes / static_cast<int64_t>(tensor.element_size());
}

}  // namespace

std::vector<Run> plan_runs(std::span<const Extent> extents) {
  std::vector<Run> runs;
  for (size_t i = 0; i < extents.size(); ++i) {
    if (!extents[i].is_updated) continue;
    if (i == 0 || !share_a_run(extents[i - 1], extents[i])) runs.push_back({i, 0, 0});
    auto& run = runs.back();
    ++run.count;
    run.numel = extents[i].locations[0].first + extents[i].numel - extents[run.first].locations[0].first;
  }
  return runs;
}

Location location_of(const at::Tensor& tensor) {
  const auto buffer = memory::buffer_of(tensor);
  return buffer ? Location{reinterpret_cast<uint64_t>(buffer.get()), first_element(tensor, *buffer)} : Location{};
}

at::Tensor flat_range(const at::Tensor& tensor, int64_t numel) {
  const auto buffer = memory::buffer_of(tensor);
  if (!buffer) return tensor.detach().as_strided({numel}, {1});
  const auto offset = static_cast<size_t>(first_element(tensor, *buffer)) * tensor.element_size();
  return memory::flat_tensor(buffer, offset, numel, tensor.scalar_type());
}

}  // namespace fsdp::runtime
