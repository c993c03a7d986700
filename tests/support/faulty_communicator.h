#pragma once
/// \file
/// A communicator that fails on demand, for tests of what follows a failure.

#include <fsdp/error.h>

#include <atomic>

#include "comm/core/ranks.h"
#include "support/decorator.h"

namespace fsdp {

/// Which call fails.
struct Fault {
  /// The number of the call, counted from 0. duplicate() counts, in the lane that it was called on.
  int at = 0;
  /// Only calls on this lane count ("main", or the name given to duplicate()); empty: calls on any lane.
  std::string lane = {};
};

/// Passes every call on to `inner`, except that the one that `fault` names throws fsdp::Error. The communicator and its
/// duplicates count their calls together.
inline std::shared_ptr<Communicator> make_faulty_communicator(std::shared_ptr<Communicator> inner, const Fault& fault) {
  const Ranks ranks{inner->rank(), inner->world_size()};
  const auto calls = std::make_shared<std::atomic<int>>(0);
  const auto watch = [=](const std::string& lane, Operation operation, uint64_t, const Tag& tag) {
    if ((!fault.lane.empty() && fault.lane != lane) || (*calls)++ != fault.at) return;
    throw Error(c10::str(ranks.where(name_of(operation)), "injected fault in '", tag.subject, "'"));
  };
  return std::make_shared<Watched>(std::move(inner), watch);
}

}  // namespace fsdp
