#include "memory/flat_buffer.h"

#include "memory/disk_store.h"

namespace fsdp::memory {
namespace {

void drop_reference(void* context) { delete static_cast<std::shared_ptr<FlatBuffer>*>(context); }

}  // namespace

void FlatBuffer::read_ahead() const noexcept {
  if (bytes_in_file_ > 0) memory::read_ahead(data(), bytes_in_file_);
}

void FlatBuffer::mark_cold() const noexcept {
  if (bytes_in_file_ > 0) memory::mark_cold(data(), bytes_in_file_);
}

c10::DataPtr part_of(const std::shared_ptr<FlatBuffer>& buffer, size_t byte_offset) {
  auto* reference = new std::shared_ptr<FlatBuffer>(buffer);
  return {static_cast<char*>(buffer->data()) + byte_offset, reference, &drop_reference, buffer->device()};
}

std::shared_ptr<FlatBuffer> buffer_of(const at::Tensor& tensor) {
  const auto* reference = tensor.storage().data_ptr().cast_context<std::shared_ptr<FlatBuffer>>(&drop_reference);
  return reference == nullptr ? nullptr : *reference;
}

void note_use(const at::Tensor& tensor) {
  if (tensor.is_cpu() || !tensor.has_storage()) return;
  if (const auto buffer = buffer_of(tensor)) buffer->uses().note_current();
}

}  // namespace fsdp::memory
