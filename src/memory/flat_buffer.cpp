#include "memory/flat_buffer.h"

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/mman.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "comm/core/current_stream.h"
#include "memory/libtorch_versions.h"

namespace fsdp::memory {
namespace {

void drop_reference(void* context) { delete static_cast<std::shared_ptr<FlatBuffer>*>(context); }

}  // namespace

FlatBuffer::FlatBuffer(c10::DataPtr data, size_t bytes, std::shared_ptr<ByteAccount> account, ByteClass cls)
    : bytes_in_file_(cls == ByteClass::kDisk ? bytes : 0),
      charge_(std::move(account), cls, static_cast<int64_t>(bytes)),
      data_(std::move(data)) {
  if (!device().is_cpu()) own_stream_ = current_stream(device());
}

FlatBuffer::~FlatBuffer() {
  try {
    for (const auto& user : users_) {
      if (user == *own_stream_) continue;
      c10::Event used(device().type());
      used.record(user);
      used.block(*own_stream_);
    }
  } catch (const std::exception&) {
    // If the device has failed, its streams run nothing that would have to wait.
  }
}

bool FlatBuffer::note_use() {
  if (!own_stream_) return false;
  const auto stream = current_stream(device());
  if (std::ranges::find(users_, stream) != users_.end()) return false;
  users_.push_back(stream);
  return true;
}

void HandedOn::put(at::Tensor tensor) {
  tensor_ = std::move(tensor);
  if (!tensor_.is_cpu()) stream_ = current_stream(tensor_.device());
}

at::Tensor HandedOn::take() {
  auto tensor = std::exchange(tensor_, at::Tensor());
  const auto from = std::exchange(stream_, std::nullopt);
  if (!from) return tensor;
  const auto to = current_stream(tensor.device());
  if (to == *from) return tensor;
  c10::Event made(from->device_type());
  made.record(*from);
  made.block(to);
  c10::impl::VirtualGuardImpl(to.device_type()).recordDataPtrOnStream(tensor.storage().data_ptr(), to);
  return tensor;
}

void FlatBuffer::read_ahead() const noexcept {
  if (bytes_in_file_ > 0) madvise(data(), bytes_in_file_, MADV_WILLNEED);
}

void FlatBuffer::mark_cold() const noexcept {
#ifdef MADV_COLD
  if (bytes_in_file_ > 0) madvise(data(), bytes_in_file_, MADV_COLD);
#endif
}

std::shared_ptr<FlatBuffer> buffer_of(const at::Tensor& tensor) {
  const auto* reference = tensor.storage().data_ptr().cast_context<std::shared_ptr<FlatBuffer>>(&drop_reference);
  return reference == nullptr ? nullptr : *reference;
}

void note_use(const at::Tensor& tensor) {
  if (tensor.is_cpu() || !tensor.has_storage()) return;
  if (const auto buffer = buffer_of(tensor)) buffer->note_use();
}

PartStorage::PartStorage(c10::Device device, size_t bytes)
    : storage_(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(bytes),
                                                     c10::DataPtr(nullptr, device),
                                                     /*allocator=*/nullptr, /*resizable=*/false)) {}

void PartStorage::attach(const std::shared_ptr<FlatBuffer>& buffer, size_t byte_offset) {
  lift_access_error(*impl());
  impl()->set_data_ptr_noswap({static_cast<char*>(buffer->data()) + byte_offset,
                               new std::shared_ptr<FlatBuffer>(buffer), &drop_reference, buffer->device()});
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
