#pragma once
/// \file
/// CPU tensors that alias the memory of device tensors for one call of an operator.

#include <ATen/core/Tensor.h>

#include <deque>
#include <unordered_map>

namespace fsdp::test::checked {

/// The aliases of one call's operands. Device tensors that share memory have aliases that share memory.
class CpuAliases {
 public:
  /// Returns the CPU alias of a device tensor, and any other tensor as it is. If the tensor's memory is gone, it throws
  /// the error that its storage throws on access.
  at::Tensor of(const at::Tensor& tensor);
  /// Returns the device tensor for a tensor that the operator returned: the operand itself, a view of an operand, or a
  /// new tensor.
  at::Tensor back(const at::Tensor& result, c10::Device device) const;
  /// Gives each operand the sizes and the memory that the operator gave its alias.
  void finish() const;

 private:
  struct Operand {
    at::Tensor on_device, on_cpu;
  };
  struct Memory {
    c10::Storage on_device, on_cpu;
    const void* address;  // address of the memory before the operator ran
  };

  std::deque<Operand> operands_;
  std::unordered_map<c10::StorageImpl*, Memory> memories_;  // keyed by the storage on the device
};

/// Returns one alias, for code that reads and writes the tensor in place. The tensor must outlive it.
at::Tensor cpu_alias(const at::Tensor& tensor);

}  // namespace fsdp::test::checked
