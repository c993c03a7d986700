#pragma once
/// \file
/// The memory of rows.

#include <span>

namespace fsdp {

namespace runtime {
struct Parts;
}

/// Makes the memory of the rows of groups over one placement, but of those on the meta device; where ranks share memory
/// in one piece, and room for their reductions. Collective.
void allocate_rows(std::span<runtime::Parts* const> groups);

}  // namespace fsdp
