#pragma once
/// \file
/// Runs of parameters whose rows, gradients and states are neighbours in memory, so that a kernel is called once for
/// each run.

#include <functional>
#include <span>

#include "optim/updates.h"

namespace fsdp::optim {

/// The elements of a run that belong to one parameter.
struct Piece {
  /// Index of the first element in the run, and number of elements.
  int64_t offset = 0, numel = 0;
  /// See Update::parameter_number and Update::first_element.
  int64_t parameter = 0, first_element = 0;
};

/// The flat tensors of one run, which have equal lengths. They are views of the updates' rows, gradients and states.
struct FlatRun {
  /// The updates of the run in memory order. There may be padding between their rows.
  std::vector<const Update*> updates;
  at::Tensor rows, gradient;
  std::vector<at::Tensor> states = {};
  /// Returns the first update. Its options and step count hold for all updates of the run.
  const Update& first() const { return *updates.front(); }
};

/// Returns one piece for each update of the run.
std::vector<Piece> pieces_of(const FlatRun& run);

/// Calls `visit` for each run of the updates; runs are as long as possible. The kernel keys, gradients and states of
/// the updates must be set. The caller holds the locks of `runtime::lock_ranks`.
void for_each_run(Updates& updates, const std::function<void(const FlatRun&)>& visit);

/// Dtype and initial value of state tensors.
struct StateForm {
  /// Dtype of the state; if unset, it is the rows' dtype.
  std::optional<at::ScalarType> dtype = std::nullopt;
  /// Initial value of each element.
  double initial = 0;
};

/// Moves every state tensor in `updates` to flat memory, unless it is there already. An undefined state is allocated
/// and gets the initial value. A state in other memory or of another dtype, such as a loaded one, is copied.
///
/// The states of neighbouring parameters that one call moves become parts of one block with the rows' layout. The
/// rank's byte account counts the block as optimizer memory. States have the rows' sizes. The caller holds the locks of
/// `runtime::lock_ranks`.
void place_states(Updates& updates, const StateForm& form);

}  // namespace fsdp::optim
