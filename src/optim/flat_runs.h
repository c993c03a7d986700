#pragma once
/// \file
/// Updates in runs: optimizer state that lies as the rows do, and one call for each run.

#include <functional>
#include <span>

#include "optim/updates.h"

namespace fsdp::optim {

/// The tensors of one run, flat and of one length. They are parts of the memory that they stand for, but for the rest
/// of a run, which is copied.
struct FlatRun {
  /// Decides on options and step; all updates of the run agree in them.
  const Update& first;
  at::Tensor rows, gradient;
  std::vector<at::Tensor> states;
};

/// Calls `visit` for each maximal run of the updates; on the CPU for what is behind its last full vector apart, in one
/// that has zeros behind it. Their recipes, gradients and states are set. Under the ranks'
/// locks.
void for_each_run(Updates& updates, const std::function<void(const FlatRun&)>& visit);

/// Gives every state that is undefined (new: zeros) or lies elsewhere (loaded: copied) its place in flat memory.
///
/// Parameters that get their state at the same time, and whose rows are neighbours, get it as parts of one block, which
/// lies as the rows do and is charged to the rank's account as optimizer memory. Under the ranks' locks. Throws
/// UsageError if a state has other sizes than the rows.
void settle_states(Updates& updates, const std::string& operation);

}  // namespace fsdp::optim
