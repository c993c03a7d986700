#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <fsdp/functional.h>

#include <optional>

#include "comm/core/check.h"
#include "parallel/attention_call.h"

namespace fsdp::parallel {

at::Tensor whole_attention(const AttentionCall& call) {
  const auto& plan = *call.plan;
  const auto valid = [](const at::Tensor& padded, const SequenceLayout& layout) {
    return padded.narrow(2, 0, layout.length);
  };
  const auto output = at::native::scaled_dot_product_attention(
      valid(call.query, plan.queries), valid(call.key, plan.keys), valid(call.value, plan.keys),
      call.mask.defined() ? std::optional(call.mask) : std::nullopt, 0.0, plan.is_causal, plan.scale,
      call.query.size(1) != call.key.size(1));
  return at::constant_pad_nd(output, {0, 0, 0, plan.queries.own_length() - plan.queries.length});
}

at::Tensor attention_by_heads(const AttentionCall& call, const std::shared_ptr<ProcessGroup>& ranks,
                              const std::function<at::Tensor(const AttentionCall&)>& ring) {
  const int64_t heads = call.query.size(1), key_heads = call.key.size(1), count = ranks->world_size();
  require(heads % count == 0 && key_heads % count == 0, ranks->where("scaled_dot_product_attention"),
          "expected numbers of heads that are multiples of the ", count, " ranks, found ", heads, " query heads and ",
          key_heads,
          " key heads. Use a method other than SequenceMethod::kHeads, or fewer ranks on the axis of heads.");
  const auto whole = [&](const at::Tensor& own) { return functional::all_to_all(own, 1, 2, ranks); };
  AttentionCall some{call.plan, whole(call.query), whole(call.key), whole(call.value), call.mask};
  if (some.mask.defined() && some.mask.size(1) > 1)
    some.mask = some.mask.narrow(1, ranks->rank() * heads / count, heads / count);
  return functional::all_to_all(ring(some), 2, 1, ranks);
}

}  // namespace fsdp::parallel
