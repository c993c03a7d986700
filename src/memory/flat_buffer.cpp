#include "memory/flat_buffer.h"

#include "memory/part_storage.h"

namespace fsdp::memory {

c10::DataPtr part_of(const std::shared_ptr<FlatBuffer>& buffer, size_t byte_offset) {
  auto* reference = new std::shared_ptr<FlatBuffer>(buffer);
  return {static_cast<char*>(buffer->data()) + byte_offset, reference,
          [](void* context) { delete static_cast<std::shared_ptr<FlatBuffer>*>(context); }, buffer->device()};
}

at::Tensor flat_tensor(const std::shared_ptr<FlatBuffer>& buffer, size_t byte_offset, int64_t numel,
                       c10::ScalarType dtype) {
  PartStorage storage(buffer->device(), static_cast<size_t>(numel) * c10::elementSize(dtype));
  storage.attach(buffer, byte_offset);
  return storage.tensor({numel}, {1}, dtype);
}

}  // namespace fsdp::memory
