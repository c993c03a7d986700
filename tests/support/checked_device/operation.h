#pragma once
/// \file
/// Operations on streams, with the memory that they read and write; the operators.

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <span>
#include <string>

#include "support/checked_device/timeline.h"

namespace fsdp::test::checked {

/// A tensor that an operation takes.
struct Operand {
  at::Tensor tensor;
  bool writes = false;
};

/// Notes that the calling thread gives the stream an operation. Operands that are not on the device do not count.
Stamp note_operation(const std::string& name, const c10::Stream& stream, std::span<const Operand> operands);

/// Notes that the host waits for the stream.
void note_host_wait(const std::string& name, const c10::Stream& stream);

/// Registers the operators; call once. Each runs its CPU kernel on the same memory, draws from the default generator of
/// its operands' device, and is noted with what it reads and writes on that device's current stream.
void register_operators();

}  // namespace fsdp::test::checked
