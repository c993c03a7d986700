#pragma once
/// \file
/// What reductions over the shard axis alone have summed, until one goes over the replicas too.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "memory/handed_on.h"
#include "runtime/reduction.h"

namespace fsdp::runtime {

/// Of one bucket. It joins this rank's own gradients before the next reduction, which so sums one thing for each rank,
/// whatever was kept: first what this rank's rows have, then the other ranks' in their order.
struct PartialSum {
  int reductions = 0;                       // whose sum it is; 0: there is none
  std::vector<uint8_t> votes = {};          // by parameter: whether some rank of the replica had a gradient
  std::map<size_t, memory::HandedOn> rows = {};  // by plane: this rank's slice

  bool is_there() const { return reductions > 0; }
  bool has(size_t parameter) const { return is_there() && votes[parameter] != 0; }
};

/// Adds the pieces of one parameter to those of its flat tensor. `gradient`: the whole one, flat, of which element 0 is
/// number `first` of the flat tensor; undefined if there is none. `rows`: what was kept of this rank's rows, of which
/// element 0 is number `first_of_rows`; it is changed, the gradient is not, which others may have. Undefined: nothing.
void add_pieces(std::vector<Piece>& pieces, int64_t first, const at::Tensor& gradient, int64_t first_of_rows,
                const at::Tensor& rows);

}  // namespace fsdp::runtime
