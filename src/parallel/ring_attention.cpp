#include <ATen/OpMathType.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <optional>
#include <utility>

#include "parallel/attention_call.h"
#include "parallel/keys_on_host.h"
#include "parallel/rotation.h"

namespace fsdp::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr auto kHeld = "keys and values, ";

// Keys and values of a call. If the ranks share memory, they are those of all ranks. Otherwise they are this rank's,
// and the ranks pass them around the ring.
struct Held {
  const AttentionPlan& plan;
  at::Tensor keys, values;

  int64_t own_length() const { return plan.keys.own_length(); }
  bool are_of_all() const { return keys.size(2) > own_length(); }
  std::pair<at::Tensor, at::Tensor> of(int64_t rank) const {
    if (!are_of_all()) return {keys, values};
    const auto part = [&](const at::Tensor& all) { return all.narrow(2, rank * own_length(), own_length()); };
    return {part(keys), part(values)};
  }
  // Calls visit(source, keys, values) with the keys and values of each rank `source`, this rank first.
  template <class Visit>
  void for_each_rank(const Visit& visit) const {
    if (are_of_all()) {
      for (int64_t step = 0; step < plan.ranks(); ++step) {
        const int64_t source = (plan.rank() + plan.ranks() - step) % plan.ranks();
        fault_point("block at hand");
        const auto [its_keys, its_values] = of(source);
        visit(source, its_keys, its_values);
      }
      return;
    }
    go_round(plan.queue(), {kHeld + plan.name, {}}, packed(keys, values), [&](int64_t source, const at::Tensor& flat) {
      const auto [its_keys, its_values] = unpacked(flat, keys, values);
      visit(source, its_keys, its_values);
    });
  }
};

// Returns the tensor, or a copy if it is a part of a larger storage, so that saving it does not keep the whole storage.
at::Tensor alone(const at::Tensor& tensor) {
  return tensor.storage().nbytes() > tensor.nbytes() ? tensor.clone() : tensor;
}

struct RingAttention : torch::autograd::Function<RingAttention> {
  // `rows` are the rows of the mask for this rank's queries.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, const std::optional<at::Tensor>& rows,
                            const c10::intrusive_ptr<AttentionPlan>& plan) {
    const auto mask = rows.value_or(at::Tensor());
    OutputSum sum(query, value);
    const auto on_host = keys_on_host(*plan, key, value);
    const Held held = on_host ? Held{*plan, on_host->keys, on_host->values} : Held{*plan, key, value};
    held.for_each_rank([&](int64_t source, const at::Tensor& keys, const at::Tensor& values) {
      const auto block = block_of(plan->queries, plan->keys, plan->rank(), source, plan->is_causal);
      if (!block) return;
      const auto columns = columns_of(mask, *plan, source, block->keys);
      sum.add(*block, operands_of(*plan, *block, query, keys, values, columns));
    });
    const auto output = sum.output().to(query.scalar_type());
    context->save_for_backward(
        {on_host ? alone(query) : query, held.keys, held.values, mask, output.detach(), sum.logsumexp()});
    keep_plan(*context, plan);
    return output;
  }

  // The sums of the gradients of keys and values go around the ring one step behind their keys and values. After the
  // last block one more step brings each sum to the rank that has the keys.
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto kept = kept_plan(*context);
    const auto& plan = *kept;
    const auto saved = context->get_saved_variables();
    const auto &query = saved[0], &mask = saved[3], &output = saved[4], &logsumexp = saved[5];
    const Held held{plan, saved[1], saved[2]};
    const auto grad = grads[0].contiguous();
    const auto dtype = at::toOpMathType(query.scalar_type());
    const auto of_query = at::zeros_like(query, query.options().dtype(dtype));
    Rotation rotation(plan.queue(), {"gradients of keys and values, " + plan.name, {}});
    at::Tensor sum;
    held.for_each_rank([&](int64_t source, const at::Tensor& keys, const at::Tensor& values) {
      const auto block = block_of(plan.queries, plan.keys, plan.rank(), source, plan.is_causal);
      std::array<at::Tensor, 3> share;
      if (block) {
        const auto columns = columns_of(mask, plan, source, block->keys);
        const auto queries = [&](const at::Tensor& all) { return all.narrow(2, block->first_query, block->queries); };
        share = backward_of(operands_of(plan, *block, query, keys, values, columns), queries(grad), queries(output),
                            queries(logsumexp));
        queries(of_query).add_(share[0]);
      }
      sum =
          sum.defined() ? rotation.arrived() : at::zeros({keys.numel() + values.numel()}, keys.options().dtype(dtype));
      if (block) {
        const auto [of_key, of_value] = unpacked(sum, keys, values);
        of_key.narrow(2, block->first_key, block->keys).add_(share[1]);
        of_value.narrow(2, block->first_key, block->keys).add_(share[2]);
      }
      rotation.start(sum);
    });
    const auto own = rotation.arrived();
    const auto [key, value] = held.of(plan.rank());
    const auto [of_key, of_value] = unpacked(own, key, value);
    return {of_query.to(query.scalar_type()), of_key.to(key.scalar_type()), of_value.to(value.scalar_type()), {}, {}};
  }
};

}  // namespace

at::Tensor ring_attention(const AttentionCall& call) {
  return RingAttention::apply(call.query, call.key, call.value, call.own_rows(), call.plan);
}

}  // namespace fsdp::parallel
