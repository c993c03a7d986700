#pragma once
/// \file
/// Operations on streams, with the memory that they read and write, and the registration of operators.

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <span>
#include <string>

#include "support/checked_device/timeline.h"

namespace fsdp::test::checked {

/// A tensor that an operation reads or writes.
struct Operand {
  at::Tensor tensor;
  bool writes = false;
};

/// Notes that the calling thread gives the stream an operation. Operands on other devices are ignored.
Stamp note_operation(const std::string& name, const c10::Stream& stream, std::span<const Operand> operands);

/// Notes that the host waits for the stream.
void note_host_wait(const std::string& name, const c10::Stream& stream);

/// Registers the operators; call it once. Each operator runs its CPU kernel on the same memory, and draws random
/// numbers from the default generator of its operands' device. It counts as an operation on the current stream of that
/// device.
void register_operators();

}  // namespace fsdp::test::checked
