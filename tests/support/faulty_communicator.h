#pragma once
/// \file
/// A communicator that goes wrong on demand, for tests of what follows.

#include <fsdp/communicator.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace fsdp {

struct Fault {
  enum class Kind : uint8_t {
    kThrow,         ///< The call throws fsdp::Error and passes nothing on.
    kDelay,         ///< The call waits for `delay` first.
    kOtherSubject,  ///< The call is passed on with another subject, as if this rank ran another operation.
  };
  Kind kind = Kind::kThrow;
  /// Which call goes wrong, counted from 0. duplicate() counts, in the lane that it was called on.
  int at = 0;
  /// Only calls on this lane count ("main", or the name given to duplicate()); empty: calls on any lane.
  std::string lane = {};
  std::chrono::milliseconds delay{0};
};

/// Passes everything on to `inner` but for the call that `fault` describes. Duplicates share its count.
std::shared_ptr<Communicator> make_faulty_communicator(std::shared_ptr<Communicator> inner, Fault fault);

}  // namespace fsdp
