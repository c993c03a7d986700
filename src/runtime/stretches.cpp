#include "runtime/stretches.h"

#include "memory/part_storage.h"

namespace fsdp::runtime {
namespace {

int64_t first_element(const at::Tensor& tensor, const memory::FlatBuffer& buffer) {
  const auto bytes = static_cast<const char*>(tensor.const_data_ptr()) - static_cast<const char*>(buffer.data());
  return bytes / static_cast<int64_t>(tensor.element_size());
}

}  // namespace

Spot spot_of(const at::Tensor& tensor) {
  const auto buffer = memory::buffer_of(tensor);
  return buffer ? Spot{reinterpret_cast<uint64_t>(buffer.get()), first_element(tensor, *buffer)} : Spot{};
}

at::Tensor stretch(const at::Tensor& tensor, int64_t numel) {
  const auto buffer = memory::buffer_of(tensor);
  if (!buffer) return tensor.detach().as_strided({numel}, {1});
  const auto offset = static_cast<size_t>(first_element(tensor, *buffer)) * tensor.element_size();
  return memory::flat_tensor(buffer, offset, numel, tensor.scalar_type());
}

}  // namespace fsdp::runtime
