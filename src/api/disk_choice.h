#pragma once
/// \file
/// Which groups are kept in files.

#include <cstdint>
#include <span>
#include <vector>

#include "api/plan.h"

namespace fsdp {

/// What rows, gradients and optimizer state of a group take on one of `ranks` ranks, rounded up: of what trains four
/// times the rows, as AdamW does, of what is frozen the rows.
int64_t expected_bytes(const PlannedGroup& group, int ranks);

/// For each group, given in order by its bytes, whether it is kept in a file: those that no longer fit into the limit
/// beside the ones before them, of which earlier calls have taken `taken` bytes.
std::vector<bool> choose_on_disk(std::span<const int64_t> bytes, int64_t taken, int64_t limit);

}  // namespace fsdp
