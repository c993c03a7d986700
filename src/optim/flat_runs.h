#pragma once
/// \file
/// Runs of updates: optimizer state with the layout of rows, and one call per run.

#include <functional>
#include <span>

#include "optim/updates.h"

namespace fsdp::optim {

/// The part of a run that belongs to one parameter.
struct Piece {
  /// Position in the run, in elements.
  int64_t offset = 0, numel = 0;
  /// See Update.
  int64_t parameter = 0, first_element = 0;
};

/// The tensors of one run, flat and of equal length. They are views of the updates' rows, gradients and states.
struct FlatRun {
  /// In memory order, possibly with padding between them.
  std::vector<const Update*> updates;
  at::Tensor rows, gradient;
  std::vector<at::Tensor> states = {};
  /// Determines options and step, which are equal for all updates of the run.
  const Update& first() const { return *updates.front(); }
};

/// One piece for each update of the run.
std::vector<Piece> pieces_of(const FlatRun& run);

/// Calls `visit` for each maximal run of the updates, whose kernel keys, gradients and states must be set. Call it with
/// the ranks locked.
void for_each_run(Updates& updates, const std::function<void(const FlatRun&)>& visit);

/// Dtype and initial value of states.
struct StateForm {
  /// Unset: the rows' dtype.
  std::optional<at::ScalarType> dtype = std::nullopt;
  /// Initial value of each element.
  double initial = 0;
};

/// Gives every state a place in flat memory, unless it has one: undefined states are new, and states in other memory or
/// of another dtype, such as loaded ones, are copied.
///
/// States of neighbouring parameters that are placed in the same call are parts of one block with the rows' layout,
/// which the rank's byte account counts as optimizer memory. States have the rows' sizes. Call it with the ranks
/// locked.
void place_states(Updates& updates, const StateForm& form);

}  // namespace fsdp::optim
