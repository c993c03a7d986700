#pragma once
/// \file
/// Sends elements of a tensor from one rank to all others.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "state/format/manifest.h"
#include "state/ranks.h"

namespace fsdp::state {

/// The elements of one tensor that a rank sends.
struct SentElements {
  std::string tensor;
  ElementRange elements = {};
  uint64_t element_bytes = 0;
  /// The rank that sends the elements, and the function that this rank calls to read some of them into `bytes`.
  int root = 0;
  std::function<void(ElementRange some, std::span<std::byte> bytes)> fill;
};

/// Broadcasts the elements in pieces of at most 16 MiB, and copies those that are in `wanted` to `out`. `out` has the
/// size of all elements in `wanted`. `fill` must not throw. Collective.
void send_elements(const SentElements& sent, ElementRange wanted, std::span<std::byte> out, const Ranks& ranks);

}  // namespace fsdp::state
