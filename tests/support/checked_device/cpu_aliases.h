#pragma once
/// \file
/// The device's tensors as tensors on the CPU, on the same memory, for one call of an operator.

#include <ATen/core/Tensor.h>

#include <deque>
#include <unordered_map>

namespace fsdp::test::checked {

/// Tensors that share memory on the device share it here too.
class CpuAliases {
 public:
  /// Of a tensor of the device; others come back as they are. Throws what the tensor says if its memory is away.
  at::Tensor of(const at::Tensor& tensor);
  /// The device's tensor for one that an operator gave: the operand itself, a view of one, or else a tensor of its own.
  at::Tensor back(const at::Tensor& result, c10::Device device) const;
  /// The operands get the sizes and the memory that the operator gave them.
  void finish() const;

 private:
  struct Operand {
    at::Tensor on_device, on_cpu;
  };
  struct Memory {
    c10::Storage on_device, on_cpu;
    const void* address;  // before the operator
  };

  std::deque<Operand> operands_;
  std::unordered_map<c10::StorageImpl*, Memory> memories_;  // by the device's
};

/// One alias alone, for code that reads and writes in place. The tensor has to stay.
at::Tensor cpu_alias(const at::Tensor& tensor);

}  // namespace fsdp::test::checked
