#include "parallel/attention_products.h"

#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

namespace fsdp::parallel {
namespace {

at::Tensor scores(const BlockOperands& operands, const at::Tensor& query, const at::Tensor& key) {
  auto all = at::matmul(query, key.transpose(2, 3)).mul_(operands.scale);
  if (operands.is_causal)
    all.masked_fill_(at::ones({all.size(2), all.size(3)}, all.options().dtype(at::kBool)).triu(1), kHidden);
  if (operands.mask.defined()) all.add_(additive(operands.mask, all.scalar_type()));
  return all;
}

}  // namespace

at::Tensor additive(const at::Tensor& mask, at::ScalarType dtype) {
  if (mask.scalar_type() != at::kBool) return mask.to(dtype);
  return at::zeros(mask.sizes(), mask.options().dtype(dtype)).masked_fill_(mask.logical_not(), kHidden);
}

at::Tensor repeated_heads(const at::Tensor& tensor, const at::Tensor& query) {
  const auto whole = tensor.to(computed_in(query));
  return tensor.size(1) == query.size(1) ? whole : whole.repeat_interleave(query.size(1) / tensor.size(1), 1);
}

at::Tensor summed_heads(const at::Tensor& grad, const at::Tensor& tensor) {
  if (grad.size(1) == tensor.size(1)) return grad;
  return grad.unflatten(1, {tensor.size(1), grad.size(1) / tensor.size(1)}).sum(2);
}

std::pair<at::Tensor, at::Tensor> by_products(const BlockOperands& operands) {
  const auto query = operands.query.to(computed_in(operands.query));
  const auto all = scores(operands, query, repeated_heads(operands.key, query));
  const auto logsumexp = at::logsumexp(all, {3});
  const auto probabilities = (all - finite(logsumexp).unsqueeze(3)).exp_();
  return {at::matmul(probabilities, repeated_heads(operands.value, query)), logsumexp};
}

std::array<at::Tensor, 3> backward_by_products(const BlockOperands& operands, const at::Tensor& grad,
                                               const at::Tensor& output, const at::Tensor& logsumexp) {
  const auto dtype = computed_in(operands.query);
  const auto query = operands.query.to(dtype), above = grad.to(dtype);
  const auto key = repeated_heads(operands.key, query), value = repeated_heads(operands.value, query);
  const auto probabilities = (scores(operands, query, key) - finite(logsumexp).unsqueeze(3)).exp_();
  const auto mean = (above * output.to(dtype)).sum(3, /*keepdim=*/true);
  const auto of_scores = (at::matmul(above, value.transpose(2, 3)) - mean).mul_(probabilities).mul_(operands.scale);
  return {at::matmul(of_scores, key), summed_heads(at::matmul(of_scores.transpose(2, 3), query), operands.key),
          summed_heads(at::matmul(probabilities.transpose(2, 3), above), operands.value)};
}

}  // namespace fsdp::parallel
