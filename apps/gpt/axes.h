#pragma once
/// \file
/// What ranks share beside the data: --pipe, --sequence, --sequence-method and --tensor.

#include <fsdp/device_mesh.h>
#include <fsdp/sequence_parallel.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arguments.h"

namespace gpt {

/// The sizes of the axes of a grid of ranks, the last one of neighbours: what moves most per step stays closest.
struct AxisSizes {
  int pipe = 1, data = 1, sequence = 1, tensor = 1;

  static std::vector<std::string> names() { return {"pipe", "data", "sequence", "tensor"}; }
  std::vector<int> shape() const { return {pipe, data, sequence, tensor}; }
  /// Whether all ranks are on the data axis.
  bool is_data_alone() const { return pipe * sequence * tensor == 1; }
  /// A rank's place on the data axis: its share of the batch.
  int share_of(int rank) const { return rank / (sequence * tensor) % data; }
};

/// As the flags say for `ranks` ranks. Throws std::invalid_argument where they do not divide them.
AxisSizes axis_sizes(const Arguments& arguments, int ranks);

/// The ranks along each axis around this one; null where there is one.
struct Axes {
  std::shared_ptr<fsdp::ProcessGroup> pipe, sequence, tensor;
  fsdp::SequenceMethod method = fsdp::SequenceMethod::kHeadTail;

  /// Opens the scope in which attention goes over the ranks that share sequences, if there are several.
  std::optional<fsdp::SequenceParallel> open_sequence() const;
};

/// Those of a mesh with these names.
Axes make_axes(const fsdp::DeviceMesh& mesh, const Arguments& arguments);

}  // namespace gpt
