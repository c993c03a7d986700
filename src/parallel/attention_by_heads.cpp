#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <fsdp/functional.h>

#include <optional>

#include "comm/core/check.h"
#include "parallel/attention_call.h"

namespace fsdp::parallel {
namespace {

// What a rank needs to know of the mask: that of its heads.
std::optional<at::Tensor> mask_of_heads(const AttentionCall& call, int64_t heads) {
  if (!call.mask.defined()) return std::nullopt;
  return call.mask.size(1) == 1 ? call.mask : call.mask.narrow(1, call.plan->rank() * heads, heads);
}

}  // namespace

at::Tensor attention_by_heads(const AttentionCall& call) {
  const auto& plan = *call.plan;
  const int64_t heads = call.query.size(1), key_heads = call.key.size(1), ranks = plan.ranks();
  require(heads % ranks == 0 && key_heads % ranks == 0, plan.group->where("scaled_dot_product_attention"),
          "expected heads that ", ranks, " ranks divide, found ", heads, " of queries and ", key_heads,
          " of keys. Use another method than SequenceMethod::kHeads, or fewer ranks for the sequence's axis.");
  const auto whole = [&](const at::Tensor& own, const SequenceLayout& layout) {
    return functional::all_to_all(own, 1, 2, plan.group).narrow(2, 0, layout.length);
  };
  const auto output = at::native::scaled_dot_product_attention(
      whole(call.query, plan.queries), whole(call.key, plan.keys), whole(call.value, plan.keys),
      mask_of_heads(call, heads / ranks), 0.0, plan.is_causal, plan.scale, heads != key_heads);
  const int64_t padding = plan.queries.own_length() * ranks - plan.queries.length;
  return functional::all_to_all(at::constant_pad_nd(output, {0, 0, 0, padding}), 2, 1, plan.group);
}

}  // namespace fsdp::parallel
