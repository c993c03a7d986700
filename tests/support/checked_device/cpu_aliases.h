#pragma once
/// \file
/// Aliases of the device's tensors on the CPU, on the same memory, for one call of an operator.

#include <ATen/core/Tensor.h>

#include <deque>
#include <unordered_map>

namespace fsdp::test::checked {

/// Tensors that share memory on the device also share it here.
class CpuAliases {
 public:
  /// The alias of a device tensor; other tensors come back as they are. If the tensor's memory is gone, throws its
  /// error.
  at::Tensor of(const at::Tensor& tensor);
  /// The device tensor for one that an operator returned: the operand itself, a view of one, or else a new tensor.
  at::Tensor back(const at::Tensor& result, c10::Device device) const;
  /// Gives the operands the sizes and the memory that the operator gave their aliases.
  void finish() const;

 private:
  struct Operand {
    at::Tensor on_device, on_cpu;
  };
  struct Memory {
    c10::Storage on_device, on_cpu;
    const void* address;  // before the operator ran
  };

  std::deque<Operand> operands_;
  std::unordered_map<c10::StorageImpl*, Memory> memories_;  // keyed by the device's storage
};

/// A single alias, for code that reads and writes in place. The tensor has to outlive it.
at::Tensor cpu_alias(const at::Tensor& tensor);

}  // namespace fsdp::test::checked
