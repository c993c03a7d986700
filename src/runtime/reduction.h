#pragma once
/// \file
/// From the whole gradients of one flat buffer to those of this rank's rows: a collective.

#include <fsdp/communicator.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "memory/flat_buffer.h"
#include "runtime/flat_params.h"
#include "runtime/group_identity.h"

namespace fsdp::runtime {

/// What a rank gives to it.
struct Contribution {
  /// The whole gradients where autograd left them, ascending.
  std::vector<Piece> pieces;
  /// Of each parameter of the buffer, whether there is one.
  std::vector<uint8_t> votes;
  std::vector<memory::Charge> charges;
};

/// In flight until its work was waited for.
struct Reduction {
  size_t flat = 0;
  std::vector<memory::Charge> charges;  // of the whole gradients
  /// This rank's slice, which lies as the flat shard does and is zero between parameters: optimizers walk through both
  /// at once.
  std::shared_ptr<memory::FlatBuffer> output;
  std::shared_ptr<Work> work;
};

/// Starts the sum over the ranks in rank order, then one multiplication by 1/divisor (unset: the placement's). The
/// votes travel along: a parameter that some rank used gets a gradient on every rank. Collective.
Reduction reduce(const GroupIdentity& group, FlatParams& flat, Contribution contribution,
                 std::optional<double> divide_factor);

}  // namespace fsdp::runtime
