#pragma once
/// \file
/// A communicator that fails on demand, for tests of what follows a failure.

#include <fsdp/error.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "comm/core/ranks.h"
#include "support/decorator.h"

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

/// Passes everything on to `inner` except the call that `fault` describes. Duplicates share its count.
inline std::shared_ptr<Communicator> make_faulty_communicator(std::shared_ptr<Communicator> inner, const Fault& fault) {
  const Ranks ranks{inner->rank(), inner->world_size()};
  const auto calls = std::make_shared<std::atomic<int>>(0);
  const auto watch = [=](const std::string& lane, Operation operation, uint64_t, Tag& tag) {
    if ((!fault.lane.empty() && fault.lane != lane) || (*calls)++ != fault.at) return;
    if (fault.kind == Fault::Kind::kThrow)
      throw Error(c10::str(ranks.where(name_of(operation)), "injected fault in '", tag.subject, "'"));
    if (fault.kind == Fault::Kind::kDelay)
      std::this_thread::sleep_for(fault.delay);
    else
      tag.subject += " (injected fault)";
  };
  return std::make_shared<Watched>(std::move(inner), watch);
}

}  // namespace fsdp
