#pragma once
/// \file
/// Keys and values of all ranks, in memory that these share.

#include <ATen/core/Tensor.h>

#include <optional>

#include "parallel/attention_call.h"

namespace fsdp::parallel {

/// Note [Keys on one host]. Where the ranks of a ring share memory nobody sends keys and values: each rank writes its
/// own ones into its place in a segment and all ranks attend to them there, in backward too, since the segment is what
/// autograd saves. A rank holds the segment by the tensors that lie in it; the last rank to let go gives the pages
/// back, and the segment is used again by a later call.
///
/// Each call begins with a small gather, in which the ranks agree about a segment that no rank holds any longer, and
/// has one barrier behind the writes. Nothing that a rank remembers from one call to the next decides which segment
/// that is, except for the list of segments, whose lengths the ranks compare: so ranks that start over after a failure,
/// which some of them met earlier in the list than others, agree again.

/// [batch, heads, tokens of all ranks, size], one rank's tokens behind the other's. Nobody writes to them.
struct KeysOnHost {
  at::Tensor keys, values;
};

/// Nothing where the plan's ranks do not all share memory. Collective.
std::optional<KeysOnHost> keys_on_host(const AttentionPlan& plan, const at::Tensor& key, const at::Tensor& value);

}  // namespace fsdp::parallel
