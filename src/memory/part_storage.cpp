#include "memory/part_storage.h"

#include <ATen/ops/empty.h>
#include <c10/core/TensorOptions.h>

#include "memory/libtorch_versions.h"

namespace fsdp::memory {

PartStorage::PartStorage(c10::Device device, size_t bytes)
    : device_(device),
      storage_(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(bytes),
                                                     c10::DataPtr(nullptr, device),
                                                     /*allocator=*/nullptr, /*resizable=*/false)) {}

void PartStorage::attach(const std::shared_ptr<FlatBuffer>& buffer, size_t byte_offset) {
  lift_access_error(*impl());
  impl()->set_data_ptr_noswap(part_of(buffer, byte_offset));
}

void PartStorage::detach(const std::string& error) {
  impl()->set_data_ptr_noswap(c10::DataPtr(nullptr, device_));
  end_storage(storage_, error);
}

at::Tensor PartStorage::tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype) const {
  const auto key = c10::computeDispatchKey(dtype, c10::kStrided, impl()->device());
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage_), c10::DispatchKeySet(key),
                                                         c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

at::Tensor flat_tensor(const std::shared_ptr<FlatBuffer>& buffer, size_t byte_offset, int64_t numel,
                       c10::ScalarType dtype) {
  PartStorage storage(buffer->device(), static_cast<size_t>(numel) * c10::elementSize(dtype));
  storage.attach(buffer, byte_offset);
  return storage.tensor({numel}, {1}, dtype);
}

void end_storage(const c10::Storage& storage, const std::string& error) {
  auto* impl = storage.unsafeGetStorageImpl();
  impl->set_data_ptr_noswap(c10::DataPtr(nullptr, impl->device()));
  impl->release_data_and_set_meta_custom_data_ptr_error_msg_(error);
}

}  // namespace fsdp::memory
