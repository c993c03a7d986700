#pragma once
/// \file
/// The memory of rows.

#include <span>
#include <string>

namespace fsdp {

namespace runtime {
class ShardedParams;
}

/// Makes the memory of the rows of groups over one placement, but of those on the meta device; where ranks share memory
/// in one piece, in files of each rank's own for groups that are kept there, and room for their reductions. Collective.
/// Throws Error on every rank if some rank's disk has too little room. `call`: of the user's, for messages.
void allocate_rows(std::span<runtime::ShardedParams* const> groups, const std::string& call);

}  // namespace fsdp
