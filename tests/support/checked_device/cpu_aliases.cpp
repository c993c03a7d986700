#include "support/checked_device/cpu_aliases.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>

namespace fsdp::test::checked {
namespace {

// Returns a tensor on `storage` with the sizes of `model`. `key` decides its device.
at::Tensor tensor_like(const at::Tensor& model, c10::Storage storage, c10::DispatchKey key) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), model.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(model.sizes(), model.strides(), model.storage_offset());
  return tensor;
}

}  // namespace

at::Tensor CpuAliases::of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_privateuseone()) return tensor;
  const auto known = std::ranges::find_if(operands_, [&](const auto& o) { return o.on_device.is_same(tensor); });
  if (known != operands_.end()) return known->on_cpu;
  if (tensor.numel() > 0) static_cast<void>(tensor.const_data_ptr());
  auto* impl = tensor.storage().unsafeGetStorageImpl();
  auto place = memories_.find(impl);
  if (place == memories_.end()) {
    void* address = impl->_mutable_data_ptr_no_checks().get();
    c10::Storage on_cpu(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                              static_cast<int64_t>(impl->nbytes()),
                                                              c10::DataPtr(address, c10::kCPU), c10::GetCPUAllocator(),
                                                              /*resizable=*/true));
    place = memories_.emplace(impl, Memory{tensor.storage(), std::move(on_cpu), address}).first;
  }
  operands_.push_back({tensor, tensor_like(tensor, place->second.on_cpu, c10::DispatchKey::CPU)});
  return operands_.back().on_cpu;
}

at::Tensor CpuAliases::back(const at::Tensor& result, c10::Device device) const {
  if (!result.defined() || !result.is_cpu()) return result;
  for (const auto& operand : operands_)
    if (operand.on_cpu.is_same(result)) return operand.on_device;
  for (const auto& [impl, memory] : memories_)
    if (memory.on_cpu.is_alias_of(result.storage()))
      return tensor_like(result, memory.on_device, c10::DispatchKey::PrivateUse1);
  const auto copy = at::empty_strided(result.sizes(), result.strides(), result.options().device(device));
  if (result.numel() > 0)
    std::memcpy(copy.mutable_data_ptr(), result.const_data_ptr(),
                at::detail::computeStorageNbytes(result.sizes(), result.strides(), result.element_size()));
  return copy;
}

void CpuAliases::finish() const {
  for (const auto& [impl, memory] : memories_) {
    const void* now = memory.on_cpu.data();
    if (now == memory.address) continue;
    const size_t bytes = memory.on_cpu.nbytes();
    auto fresh = c10::GetAllocator(c10::DeviceType::PrivateUse1)->allocate(bytes);
    if (bytes > 0) std::memcpy(fresh.get(), now, bytes);
    impl->set_data_ptr_noswap(std::move(fresh));
    impl->set_nbytes(bytes);
  }
  for (const auto& [on_device, on_cpu] : operands_)
    if (on_device.sizes() != on_cpu.sizes() || on_device.strides() != on_cpu.strides() ||
        on_device.storage_offset() != on_cpu.storage_offset())
      on_device.unsafeGetTensorImpl()->set_sizes_and_strides(on_cpu.sizes(), on_cpu.strides(), on_cpu.storage_offset());
}

at::Tensor cpu_alias(const at::Tensor& tensor) { return CpuAliases().of(tensor); }

}  // namespace fsdp::test::checked
