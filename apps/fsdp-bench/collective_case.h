#pragma once
/// \file
/// The collectives that `fsdp-bench collectives` runs: their inputs, their calls, and the check of their results.

#include <ATen/core/Tensor.h>
#include <fsdp/communicator.h>

#include <cstdint>
#include <span>
#include <string>

namespace bench {

/// One repetition of a collective on this rank.
struct Exercise {
  fsdp::Communicator& communicator;
  /// Two flat fp32 tensors that have the size of the message.
  at::Tensor first, second;
  /// Number of the repetition. The data of each repetition differ.
  uint32_t round = 0;
};

/// A collective that is measured. `prepare` and `verify` are local; `run` is collective and returns when the result is
/// complete.
struct CollectiveCase {
  const char* name;
  /// Returns the number of bytes that pass the busiest link for each byte of the message, if there are `world` ranks.
  /// The message has the size of the call's largest tensor. A bandwidth that is multiplied by this number can be
  /// compared with the speed of the link, whatever the collective and the number of ranks. The numbers are from the
  /// documentation of nccl-tests, "Performance reported by NCCL tests".
  double (*bus_share)(int world);
  void (*prepare)(const Exercise& exercise);
  void (*run)(const Exercise& exercise);
  /// Throws fsdp::Error at the first wrong element.
  void (*verify)(const Exercise& exercise);
};

/// Returns the collectives that move data. In send_recv each even rank sends to the next rank; if the number of ranks
/// is odd, the last rank does nothing.
std::span<const CollectiveCase> collective_cases();

/// Returns a case in which all ranks at once copy within their memory.
const CollectiveCase& copy_case();

}  // namespace bench
