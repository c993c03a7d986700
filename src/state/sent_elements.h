#pragma once
/// \file
/// Sending of a tensor's elements from one rank to others.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "state/format/manifest.h"
#include "state/ranks.h"

namespace fsdp::state {

/// The elements of one tensor to send.
struct SentElements {
  std::string tensor;
  ElementRange elements = {};
  uint64_t element_bytes = 0;
  /// The rank that has the elements, and its function that reads some of them into `bytes`.
  int root = 0;
  std::function<void(ElementRange some, std::span<std::byte> bytes)> fill;
};

/// Broadcasts the elements, up to 16 MiB at a time, and copies those of `wanted` to `out`, whose size must match.
/// Collective. `fill` must not throw.
void send_elements(const SentElements& sent, ElementRange wanted, std::span<std::byte> out, const Ranks& ranks);

}  // namespace fsdp::state
