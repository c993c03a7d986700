#pragma once
/// \file
/// What one rank adds to a checkpoint.

#include <fsdp/checkpoint.h>

#include <string>
#include <vector>

#include "state/format/manifest.h"
#include "state/model_tensors.h"
#include "state/ranks.h"
#include "state/rows_file.h"

namespace fsdp::state {

struct CheckpointPart {
  int rank = 0;
  /// What is no rows: files and tensors come when they are written.
  Manifest manifest = {};
  std::vector<RowsToWrite> model = {}, training = {};
};

/// Throws UsageError for options that cannot be right and for an optimizer that cannot be saved.
void require_savable(const ModelTensors& tensors, const torch::optim::Optimizer* optimizer, const SaveOptions& options,
                     const std::string& where);
/// Refers to the rows that the model and the optimizer have. Collective over a tensor axis, if there is one.
CheckpointPart part_of(const ModelTensors& tensors, const torch::optim::Optimizer* optimizer,
                       const SaveOptions& options, const Ranks& ranks);
/// Adds the random states that this rank saves. Throws UsageError if one of SaveOptions::random_states is no state.
void add_random_states(CheckpointPart& part, const ModelTensors& tensors, const SaveOptions& options);
/// The same with rows of its own, on the CPU: those that this rank writes.
CheckpointPart copied(CheckpointPart part);
/// Writes this rank's files. Returns the text of its part of the manifest. Throws FileError, and UsageError for a
/// dtype that files do not have.
std::string write(const std::string& folder, CheckpointPart part);
/// What errors call it.
std::string whose_part(int rank);

}  // namespace fsdp::state
