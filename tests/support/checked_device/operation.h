#pragma once
/// \file
/// What a stream is given, with the memory that it reads and writes; the operators.

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

/// Notes that the calling thread gives the stream an operation on `operands`; those elsewhere do not count.
Stamp note_operation(const std::string& name, const c10::Stream& stream, std::span<const Operand> operands);

/// Notes that the host waits for the stream.
void note_host_wait(const std::string& name, const c10::Stream& stream);

/// Every operator runs its CPU kernel on the same memory, and notes what it reads and writes on the current stream of
/// its operands' device, whose default generator it draws from. Once.
void register_operators();

}  // namespace fsdp::test::checked
