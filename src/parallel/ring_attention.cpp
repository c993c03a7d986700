#include <ATen/OpMathType.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <optional>

#include "parallel/attention_call.h"
#include "parallel/rotation.h"

namespace fsdp::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr auto kHeld = "keys and values, ";

struct RingAttention : torch::autograd::Function<RingAttention> {
  // `rows`: those of the mask that are of this rank's queries.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, const std::optional<at::Tensor>& rows,
                            const c10::intrusive_ptr<AttentionPlan>& plan) {
    const auto mask = rows.value_or(at::Tensor());
    OutputSum sum(query, value);
    go_round(plan->order(), {kHeld + plan->name, {}}, packed(key, value), [&](int64_t source, const at::Tensor& held) {
      const auto block = block_of(plan->queries, plan->keys, plan->rank(), source, plan->is_causal);
      if (!block) return;
      const auto [keys, values] = unpacked(held, key, value);
      const auto columns = columns_of(mask, *plan, source, block->keys);
      sum.add(*block, operands_of(*plan, *block, query, keys, values, columns));
    });
    const auto output = sum.output().to(query.scalar_type());
    context->save_for_backward({query, key, value, mask, output, sum.logsumexp()});
    keep_plan(*context, plan);
    return output;
  }

  // The gradients of keys and values follow these round, and go one step further, home.
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto kept = kept_plan(*context);
    const auto& plan = *kept;
    const auto saved = context->get_saved_variables();
    const auto &query = saved[0], &key = saved[1], &value = saved[2], &mask = saved[3], &output = saved[4],
               &logsumexp = saved[5];
    const auto grad = grads[0].contiguous();
    const auto dtype = at::toOpMathType(query.scalar_type());
    const auto of_query = at::zeros_like(query, query.options().dtype(dtype));
    Rotation rotation(plan.order(), {"gradients of keys and values, " + plan.name, {}});
    at::Tensor sum;
    go_round(plan.order(), {kHeld + plan.name, {}}, packed(key, value), [&](int64_t source, const at::Tensor& held) {
      const auto block = block_of(plan.queries, plan.keys, plan.rank(), source, plan.is_causal);
      std::array<at::Tensor, 3> share;
      if (block) {
        const auto [keys, values] = unpacked(held, key, value);
        const auto columns = columns_of(mask, plan, source, block->keys);
        const auto queries = [&](const at::Tensor& all) { return all.narrow(2, block->first_query, block->queries); };
        share = backward_of(operands_of(plan, *block, query, keys, values, columns), queries(grad), queries(output),
                            queries(logsumexp));
        queries(of_query).add_(share[0]);
      }
      sum = sum.defined() ? rotation.arrived() : at::zeros(held.sizes(), held.options().dtype(dtype));
      if (block) {
        const auto [of_key, of_value] = unpacked(sum, key, value);
        of_key.narrow(2, block->first_key, block->keys).add_(share[1]);
        of_value.narrow(2, block->first_key, block->keys).add_(share[2]);
      }
      rotation.start(sum);
    });
    const auto own = rotation.arrived();
    const auto [of_key, of_value] = unpacked(own, key, value);
    return {of_query.to(query.scalar_type()), of_key.to(key.scalar_type()), of_value.to(value.scalar_type()), {}, {}};
  }
};

}  // namespace

at::Tensor ring_attention(const AttentionCall& call) {
  return RingAttention::apply(call.query, call.key, call.value, call.own_rows(), call.plan);
}

}  // namespace fsdp::parallel
