#pragma once
/// \file
/// The mesh axes along which ranks split the model and the tokens: --pipe, --sequence, --sequence-method and --tensor.

#include <fsdp/device_mesh.h>
#include <fsdp/sequence_parallel.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arguments.h"

namespace gpt {

/// Sizes of the mesh axes. Ranks along the last axis are neighbours, because they communicate most in a step.
struct AxisSizes {
  int pipe = 1, data = 1, sequence = 1, tensor = 1;

  static std::vector<std::string> names() { return {"pipe", "data", "sequence", "tensor"}; }
  std::vector<int> shape() const { return {pipe, data, sequence, tensor}; }
  /// True if only the data axis has more than one rank.
  bool is_data_alone() const { return pipe * sequence * tensor == 1; }
  /// Returns a rank's place on the data axis, which determines its share of the batch.
  int share_of(int rank) const { return rank / (sequence * tensor) % data; }
};

/// Returns the sizes that the flags give for `ranks` ranks. Throws std::invalid_argument if the product of the flags
/// does not divide `ranks`.
AxisSizes axis_sizes(const Arguments& arguments, int ranks);

/// This rank's process group along each axis. A group is null if its axis has only one rank.
struct Axes {
  std::shared_ptr<fsdp::ProcessGroup> pipe, sequence, tensor;
  fsdp::SequenceMethod method = fsdp::SequenceMethod::kHeadTail;

  /// Opens the scope in which the ranks of the sequence axis compute attention together. Returns nullopt if there is no
  /// such axis.
  std::optional<fsdp::SequenceParallel> open_sequence() const;
};

/// Returns the process groups of `mesh`, whose axes have the names of AxisSizes::names().
Axes make_axes(const fsdp::DeviceMesh& mesh, const Arguments& arguments);

}  // namespace gpt
