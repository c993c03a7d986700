#pragma once
/// \file
/// What ranks share beside the data: --sequence, --sequence-method and --tensor.

#include <fsdp/device_mesh.h>
#include <fsdp/sequence_parallel.h>

#include <memory>
#include <optional>

#include "arguments.h"

namespace gpt {

/// The ranks as a grid of data, sequence and tensor, the last one of neighbours.
struct Axes {
  /// The ranks that share sequences, and those that share each block; null where there is one.
  std::shared_ptr<fsdp::ProcessGroup> sequence, tensor;
  fsdp::SequenceMethod method = fsdp::SequenceMethod::kHeadTail;
  /// The ranks over which parameters are sharded, where these are not all of them.
  std::optional<fsdp::DeviceMesh> sharding;
  /// Which share of the batch this rank has, and how many shares there are.
  int64_t share = 0, shares = 1;

  /// Opens the scope in which attention goes over the ranks that share sequences, if there are several.
  std::optional<fsdp::SequenceParallel> open_sequence() const;
};

/// As the flags say. Collective. Throws std::invalid_argument where they do not divide the number of ranks.
Axes make_axes(const Arguments& arguments);

}  // namespace gpt
