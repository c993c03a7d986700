#pragma once
/// \file
/// Keys and values of all ranks, in memory that the ranks share.

#include <ATen/core/Tensor.h>

#include <optional>

#include "parallel/attention_call.h"

namespace fsdp::parallel {

/// Note [Keys on one host]. If the ranks of a ring share memory, they do not send keys and values. Each rank writes its
/// own keys and values to its place in a segment of shared memory, and all ranks read them there. Backward reads them
/// there too, because autograd saves tensors that are views of the segment. A rank holds the segment as long as it has
/// such tensors. When the last rank has released the segment, its pages are given back, and a later call may use the
/// segment again.
///
/// Each call begins with a small all-gather, in which the ranks agree on a segment that no rank holds, and has a
/// barrier after the writes. In the all-gather, rank 0 chooses a segment, and the ranks compare how many segments they
/// know and forget those that not all of them know. Their lists of segments can differ after a failure that some ranks
/// met earlier than others; the next call makes the lists equal again.

/// Keys and values of sizes [batch, heads, tokens of all ranks, size], in the order of the ranks. They must not be
/// written.
struct KeysOnHost {
  at::Tensor keys, values;
};

/// Returns the keys and values of all ranks of the plan, or nothing if these ranks do not all share memory. Collective.
std::optional<KeysOnHost> keys_on_host(const AttentionPlan& plan, const at::Tensor& key, const at::Tensor& value);

}  // namespace fsdp::parallel
