#pragma once
/// \file
/// A communicator that fails on demand, for tests of what happens after a failure.

#include <fsdp/error.h>

#include <atomic>

#include "comm/core/ranks.h"
#include "support/decorator.h"

namespace fsdp {

/// Names the call that fails.
struct Fault {
  /// Number of the call, counted from 0. A call of duplicate() counts in the lane on which it was made.
  int at = 0;
  /// Name of the lane on which calls count: "main", or the name given to duplicate(). If it is empty, calls on all
  /// lanes count.
  std::string lane = {};
};

/// Returns a communicator that passes every call on to `inner`, but throws fsdp::Error in the call that `fault` names.
/// The communicator and its duplicates share one counter of calls.
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
