#pragma once
/// \file
/// The operators of the checked device.

namespace fsdp::test::checked {

/// Every operator runs its CPU kernel on the same memory, and notes what it reads and writes on the current stream of
/// its operands' device, whose default generator it draws from. Once.
void register_operators();

}  // namespace fsdp::test::checked
