#pragma once
/// \file
/// Updates in runs: optimizer state that lies as the rows do, and one call for each run.

#include <functional>
#include <span>

#include "optim/updates.h"

namespace fsdp::optim {

/// What of a run is one parameter's.
struct Piece {
  /// In the run, in elements.
  int64_t offset = 0, numel = 0;
  /// As Update's.
  int64_t parameter = 0, first_element = 0;
};

/// The tensors of one run, flat and of one length. They are parts of the memory that they stand for.
struct FlatRun {
  /// In the order of memory; between them lies padding.
  std::vector<const Update*> updates;
  at::Tensor rows, gradient;
  std::vector<at::Tensor> states = {};
  /// Decides on options and step; all updates of the run agree in them.
  const Update& first() const { return *updates.front(); }
};

/// One for each of its updates.
std::vector<Piece> pieces_of(const FlatRun& run);

/// Calls `visit` for each maximal run of the updates. Their kernel keys, gradients and states are set. Under the ranks'
/// locks.
void for_each_run(Updates& updates, const std::function<void(const FlatRun&)>& visit);

/// What states are made of.
struct StateForm {
  /// Unset: that of the rows.
  std::optional<at::ScalarType> dtype = std::nullopt;
  /// Of each element at first.
  double initial = 0;
};

/// Gives every state that is undefined (new) or lies elsewhere or in another dtype (loaded: copied) its place in flat
/// memory.
///
/// Parameters that get their state at the same time, and whose rows are neighbours, get it as parts of one block, which
/// lies as the rows do and is charged to the rank's account as optimizer memory. Under the ranks' locks. A state has
/// the rows' sizes.
void place_states(Updates& updates, const StateForm& form);

}  // namespace fsdp::optim
