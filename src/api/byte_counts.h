#pragma once
/// \file
/// An account's bytes as users see them.

#include <fsdp/group.h>

#include "memory/byte_account.h"

namespace fsdp {

inline ByteCounts byte_counts(const memory::ByteAccount& account) {
  using memory::ByteClass;
  const auto of = [&](ByteClass cls) { return ByteCount{account.current(cls), account.peak(cls)}; };
  // What is recorded has what checkpoints keep in it; of all groups the same of both counts.
  const auto activation = [&](auto count) {
    const auto& all = account.whole();
    const bool is_recorded = (all.*count)(ByteClass::kForward) >= (all.*count)(ByteClass::kActivation);
    return (account.*count)(is_recorded ? ByteClass::kForward : ByteClass::kActivation);
  };
  return {.rows = of(ByteClass::kRows),
          .whole = of(ByteClass::kWhole),
          .gradient = of(ByteClass::kGradient),
          .optimizer = of(ByteClass::kOptimizer),
          .activation = {activation(&memory::ByteAccount::current), activation(&memory::ByteAccount::peak)},
          .host = of(ByteClass::kHost),
          .disk = of(ByteClass::kDisk)};
}

}  // namespace fsdp
