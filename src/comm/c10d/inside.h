#pragma once
/// \file
/// What the ranks of one host do among themselves in the middle of a collective of several hosts.

#include <fsdp/communicator.h>

#include "comm/c10d/wire.h"
#include "comm/core/ranks.h"

#include <functional>
#include <memory>

namespace fsdp {

/// A host's ranks, which share memory, in an order that has a wire too.
///
/// Waiting inside a host ends as waiting for the wire does: by the timeout, or when the wire is interrupted. What goes
/// wrong here is told as if the wire had failed, so that the roll call alone says who is to blame.
/// Thread safety: one thread.
class Inside {
 public:
  /// `ranks`: of all hosts. `host`: those of this one, of which errors name the global ranks.
  Inside(std::shared_ptr<Communicator> host, const Ranks& ranks, std::shared_ptr<Wire> wire)
      : host_(std::move(host)), ranks_(ranks), wire_(std::move(wire)) {}

  /// Runs `act`, which waits for what it begins. Throws Interrupted, or what stands for a broken connection.
  void run(const std::function<void(Communicator& host)>& act) const;

 private:
  const std::shared_ptr<Communicator> host_;
  const Ranks ranks_;
  const std::shared_ptr<Wire> wire_;
};

}  // namespace fsdp
