#pragma once
/// \file
/// An account's bytes as users see them.

#include <fsdp/group.h>

#include <algorithm>

#include "memory/byte_account.h"

namespace fsdp {

inline ByteCounts byte_counts(const memory::ByteAccount& account) {
  using memory::ByteClass;
  const auto of = [&](ByteClass cls) { return ByteCount{account.current(cls), account.peak(cls)}; };
  const auto kept = of(ByteClass::kActivation), recorded = of(ByteClass::kForward);
  return {.rows = of(ByteClass::kRows),
          .whole = of(ByteClass::kWhole),
          .gradient = of(ByteClass::kGradient),
          .optimizer = of(ByteClass::kOptimizer),
          // What is recorded has what checkpoints keep in it.
          .activation = {std::max(kept.current, recorded.current), std::max(kept.peak, recorded.peak)},
          .host = of(ByteClass::kHost),
          .disk = of(ByteClass::kDisk)};
}

}  // namespace fsdp
