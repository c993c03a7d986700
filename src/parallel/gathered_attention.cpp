#include <ATen/OpMathType.h>
#include <ATen/ops/zeros_like.h>
#include <fsdp/functional.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <optional>

#include "parallel/attention_call.h"
#include "parallel/keys_on_host.h"

namespace fsdp::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Attention of this rank's queries to the keys of all ranks. The keys are in the order of the sequence.
struct AttentionToAll : torch::autograd::Function<AttentionToAll> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, const std::optional<at::Tensor>& rows,
                            const c10::intrusive_ptr<AttentionPlan>& plan) {
    const auto mask = rows.value_or(at::Tensor());
    OutputSum sum(query, value);
    for (const auto& block : blocks_of_all(plan->queries, plan->keys, plan->rank(), plan->is_causal))
      sum.add(block, operands_of(*plan, block, query, key, value, mask));
    const auto output = sum.output().to(query.scalar_type());
    context->save_for_backward({query, key, value, mask, output.detach(), sum.logsumexp()});
    keep_plan(*context, plan);
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto kept = kept_plan(*context);
    const auto& plan = *kept;
    const auto saved = context->get_saved_variables();
    const auto grad = grads[0].contiguous();
    const auto dtype = at::toOpMathType(grad.scalar_type());
    std::array<at::Tensor, 3> sums;
    for (size_t i = 0; i < 3; ++i) sums[i] = at::zeros_like(saved[i], saved[i].options().dtype(dtype));
    for (const auto& block : blocks_of_all(plan.queries, plan.keys, plan.rank(), plan.is_causal)) {
      const auto share =
          backward_of(operands_of(plan, block, saved[0], saved[1], saved[2], saved[3]), grad, saved[4], saved[5]);
      sums[0].add_(share[0]);
      for (size_t i = 1; i < 3; ++i) sums[i].narrow(2, block.first_key, block.keys).add_(share[i]);
    }
    variable_list result;
    for (size_t i = 0; i < 3; ++i) result.push_back(sums[i].to(saved[i].scalar_type()));
    result.resize(5);
    return result;
  }
};

// An all-gather of the ranks' keys or values. Forward only returns `all`, which has them already; backward is a
// reduce-scatter.
struct Gathered : torch::autograd::Function<Gathered> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& /*own*/, const at::Tensor& all,
                            const c10::intrusive_ptr<AttentionPlan>& plan) {
    keep_plan(*context, plan);
    return all.alias();
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    return {functional::reduce_scatter(grads[0], 2, kept_plan(*context)->group), {}, {}};
  }
};

}  // namespace

at::Tensor gathered_attention(const AttentionCall& call) {
  const auto on_host = keys_on_host(*call.plan, call.key, call.value);
  const auto gathered = [&](const at::Tensor& own, const at::Tensor& all) {
    return all.defined() ? Gathered::apply(own, all, call.plan) : functional::all_gather(own, 2, call.plan->group);
  };
  const auto all = on_host.value_or(KeysOnHost{});
  return AttentionToAll::apply(call.query, gathered(call.key, all.keys), gathered(call.value, all.values),
                               call.own_rows(), call.plan);
}

}  // namespace fsdp::parallel
