#pragma once
/// \file
/// Elements of a tensor that one rank has and others want.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "state/format/manifest.h"
#include "state/ranks.h"

namespace fsdp::state {

/// Elements of one tensor on their way.
struct SentElements {
  std::string tensor;
  ElementRange elements = {};
  uint64_t element_bytes = 0;
  /// The rank that has them, and what there fills `bytes` with some of them.
  int root = 0;
  std::function<void(ElementRange some, std::span<std::byte> bytes)> fill;
};

/// Sends them to all ranks, a few MiB at a time, and copies those of `wanted` to `out`, which has room for these.
/// Collective: `fill` must not throw.
void send_elements(const SentElements& sent, ElementRange wanted, std::span<std::byte> out, const Ranks& ranks);

}  // namespace fsdp::state
