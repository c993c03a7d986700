#pragma once
/// \file
/// What a model that is one large group could do better.

#include <cstdint>
#include <string>

#include "api/group_view.h"

namespace fsdp {

/// Names the bytes at stake and the modules that could be groups of their own: those of the type that repeats and has
/// most of the parameters. Empty unless the view is one group of at least `least_bytes` that is gathered over a network
/// and freed again. Not collective.
std::string large_group_hint(const GroupView& view, int64_t least_bytes);

/// Warns with it on the first rank, when it is called first for the module's group.
void hint_once(const GroupView& view);

}  // namespace fsdp
