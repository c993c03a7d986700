#pragma once
/// \file
/// The part that one rank contributes to a checkpoint.

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
  /// The manifest without files and tensors, which `write` adds.
  Manifest manifest = {};
  /// The rows for Manifest::model and Manifest::training.
  std::vector<RowsToWrite> model = {}, training = {};
};

/// Throws UsageError for invalid options and for an optimizer that cannot be saved.
void require_savable(const ModelTensors& tensors, const torch::optim::Optimizer* optimizer, const SaveOptions& options,
                     const std::string& where);
/// Returns this rank's part. The part refers to the rows of the model and the optimizer; only tensors that are split by
/// columns are copied (see with_whole_rows). Collective over the tensor axis if there is one.
CheckpointPart part_of(const ModelTensors& tensors, const torch::optim::Optimizer* optimizer,
                       const SaveOptions& options, const Ranks& ranks);
/// Adds the random states that this rank saves. Throws UsageError if an entry of SaveOptions::random_states is not a
/// generator state.
void add_random_states(CheckpointPart& part, const ModelTensors& tensors, const SaveOptions& options);
/// Copies the rows that this rank writes to the CPU, and returns a part that no longer refers to the model.
CheckpointPart copied(CheckpointPart part);
/// Writes this rank's files and returns its part of the manifest as text. Throws FileError, and UsageError for a dtype
/// that files do not support.
std::string write(const std::string& folder, CheckpointPart part);
/// Returns the name of a rank's part in error messages.
std::string whose_part(int rank);

}  // namespace fsdp::state
