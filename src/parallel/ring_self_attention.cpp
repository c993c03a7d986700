#include <ATen/ops/cat.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <string>
#include <vector>

#include "parallel/attention_call.h"
#include "parallel/attention_products.h"
#include "parallel/rotation.h"

namespace fsdp::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The columns of the scores that belong to the keys of one rank.
struct Columns {
  int64_t first, count;
  at::Tensor of(const at::Tensor& all) const { return all.narrow(3, first, count); }
};

// Passes the ranks' keys or values around the ring. Calls visit(source, tensor, columns) with the keys or values of
// each rank `source`, without padding, and with their columns of the scores.
template <class Visit>
void for_each_rank(const AttentionPlan& plan, const char* what, const at::Tensor& own, const Visit& visit) {
  go_round(plan.queue(), {what + plan.name, {}}, own.reshape({-1}), [&](int64_t source, const at::Tensor& held) {
    const Columns columns{source * plan.keys.own_length(), plan.keys.valid_length(source)};
    if (columns.count > 0) visit(source, held.view(own.sizes()).narrow(2, 0, columns.count), columns);
  });
}

// Returns the attention probabilities of this rank's queries, which are whole rows over all keys. `mask` has the rows
// for these queries.
at::Tensor probabilities_of(const AttentionPlan& plan, const at::Tensor& query, const at::Tensor& key,
                            const std::optional<at::Tensor>& mask) {
  std::vector<at::Tensor> parts(static_cast<size_t>(plan.ranks()));
  for_each_rank(plan, "keys, ", key, [&](int64_t source, const at::Tensor& keys, const Columns&) {
    parts[static_cast<size_t>(source)] = at::matmul(query, repeated_heads(keys, query).transpose(2, 3));
  });
  std::erase_if(parts, [](const at::Tensor& part) { return !part.defined(); });
  auto scores = at::cat(parts, 3).mul_(plan.scale);
  if (plan.is_causal) {
    const auto all = at::ones({scores.size(2), scores.size(3)}, scores.options().dtype(at::kBool));
    scores.masked_fill_(all.triu(plan.rank() * plan.queries.own_length() + 1), kHidden);
  }
  if (mask) scores.add_(additive(*mask, scores.scalar_type()));
  return scores.sub_(finite(at::logsumexp(scores, {3}, /*keepdim=*/true))).exp_();
}

struct RingSelfAttention : torch::autograd::Function<RingSelfAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& given, const at::Tensor& key,
                            const at::Tensor& value, const std::optional<at::Tensor>& rows,
                            const c10::intrusive_ptr<AttentionPlan>& plan) {
    const auto query = given.to(computed_in(given));
    const auto probabilities = probabilities_of(*plan, query, key, rows);
    auto sum = at::zeros({query.size(0), query.size(1), query.size(2), value.size(3)}, query.options());
    for_each_rank(*plan, "values, ", value, [&](int64_t, const at::Tensor& values, const Columns& columns) {
      sum.add_(at::matmul(columns.of(probabilities), repeated_heads(values, query)));
    });
    const auto output = sum.to(given.scalar_type());
    context->save_for_backward({given, key, value, probabilities, output.detach()});
    keep_plan(*context, plan);
    return output;
  }

  // Each rank computes its share of the gradients of all keys and values, and an all-reduce adds the shares, as in the
  // paper (S. Li et al., 2021).
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto kept = kept_plan(*context);
    const auto& plan = *kept;
    const auto saved = context->get_saved_variables();
    const auto &key = saved[1], &value = saved[2], &probabilities = saved[3];
    const auto dtype = computed_in(saved[0]);
    const auto query = saved[0].to(dtype), grad = grads[0].to(dtype);
    const auto of_all = [&](const at::Tensor& own) {
      auto sizes = own.sizes().vec();
      sizes.insert(sizes.begin(), plan.ranks());
      return at::zeros(sizes, query.options());
    };
    const auto of_keys = of_all(key), of_values = of_all(value);
    const auto put = [](const at::Tensor& all, int64_t source, const at::Tensor& share) {
      all[source].narrow(2, 0, share.size(2)).copy_(share);
    };

    auto of_scores = at::zeros_like(probabilities);
    for_each_rank(plan, "values, ", value, [&](int64_t source, const at::Tensor& values, const Columns& columns) {
      columns.of(of_scores).copy_(at::matmul(grad, repeated_heads(values, query).transpose(2, 3)));
      put(of_values, source, summed_heads(at::matmul(columns.of(probabilities).transpose(2, 3), grad), values));
    });
    of_scores.sub_((grad * saved[4].to(dtype)).sum(3, /*keepdim=*/true)).mul_(probabilities).mul_(plan.scale);
    auto of_query = at::zeros_like(query);
    for_each_rank(plan, "keys, ", key, [&](int64_t source, const at::Tensor& keys, const Columns& columns) {
      of_query.add_(at::matmul(columns.of(of_scores), repeated_heads(keys, query)));
      put(of_keys, source, summed_heads(at::matmul(columns.of(of_scores).transpose(2, 3), query), keys));
    });
    plan.queue()
        ->all_reduce({of_keys, of_values}, ReduceOp::kSum, {"gradients of keys and values, " + plan.name, {}})
        ->wait();
    return {of_query.to(saved[0].scalar_type()), of_keys[plan.rank()].to(key.scalar_type()),
            of_values[plan.rank()].to(value.scalar_type()), {}, {}};
  }
};

}  // namespace

at::Tensor ring_self_attention(const AttentionCall& call) {
  return RingSelfAttention::apply(call.query, call.key, call.value, call.own_rows(), call.plan);
}

}  // namespace fsdp::parallel
