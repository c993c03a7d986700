#pragma once
/// \file
/// The collectives that `fsdp-bench collectives` runs: what each reads, does and must deliver.

#include <ATen/core/Tensor.h>
#include <fsdp/communicator.h>

#include <cstdint>
#include <span>
#include <string>

namespace bench {

/// One repetition of a collective on this rank.
struct Exercise {
  fsdp::Communicator& communicator;
  /// Two flat fp32 tensors of the message's size.
  at::Tensor first, second;
  /// Makes the numbers of each repetition differ.
  uint32_t round = 0;
};

/// `prepare` and `verify` are local, `run` is collective and returns with the result in place.
struct CollectiveCase {
  const char* name;
  /// Bytes that pass the busiest link for each byte of the message, over `world` ranks: with it, figures of different
  /// collectives and numbers of ranks compare with the link's own speed. From the documentation of nccl-tests,
  /// "Performance reported by NCCL tests". The message is what the largest tensor of the call holds.
  double (*bus_share)(int world);
  void (*prepare)(const Exercise& exercise);
  void (*run)(const Exercise& exercise);
  /// Throws fsdp::Error at the first wrong element.
  void (*verify)(const Exercise& exercise);
};

/// Those that move data. send_recv: of two neighbours the even rank sends to the odd one; the last of an odd number of
/// ranks idles.
std::span<const CollectiveCase> collective_cases();

/// A copy by each rank in its own memory, all of them at once.
const CollectiveCase& copy_case();

}  // namespace bench
