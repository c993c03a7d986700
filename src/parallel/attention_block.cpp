#include "parallel/attention_block.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/zeros.h>

#include <optional>
#include <tuple>
#include <utility>

namespace fsdp::parallel {
namespace {

bool is_flash(const BlockOperands& operands) {
  return operands.query.is_cpu() && operands.query.size(3) == operands.value.size(3);
}

std::optional<at::Tensor> flash_mask(const BlockOperands& operands) {
  if (!operands.mask.defined()) return std::nullopt;
  return additive(operands.mask, operands.query.scalar_type());
}

// Returns output and logsumexp. LibTorch's kernel returns a logsumexp of 0, instead of minus infinity, for a query from
// which the mask hides all keys, so this function corrects it.
std::pair<at::Tensor, at::Tensor> by_flash(const BlockOperands& operands) {
  const auto mask = flash_mask(operands);
  auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      operands.query, operands.key, operands.value, 0.0, operands.is_causal, mask, operands.scale);
  if (mask) logsumexp = logsumexp.masked_fill(mask->isneginf().all(3), kHidden);
  return {output, logsumexp};
}

}  // namespace

OutputSum::OutputSum(const at::Tensor& query, const at::Tensor& value) {
  const auto options = query.options().dtype(computed_in(query));
  // In memory the tokens come before the heads, as in the output of LibTorch's kernel: models join the heads after
  // attention, which copies nothing in this layout.
  output_ = at::zeros({query.size(0), query.size(2), query.size(1), value.size(3)}, options).transpose(1, 2);
  logsumexp_ = at::full({query.size(0), query.size(1), query.size(2)}, kHidden, options);
}

void OutputSum::add(const Block& block, const BlockOperands& operands) {
  const auto [output, logsumexp] = is_flash(operands) ? by_flash(operands) : by_products(operands);
  const auto before = logsumexp_.narrow(2, block.first_query, block.queries);
  const auto joined = at::logaddexp(before, logsumexp);
  const auto weight = (logsumexp - finite(joined)).exp_().unsqueeze_(3);
  output_.narrow(2, block.first_query, block.queries).lerp_(output.to(output_.scalar_type()), weight);
  before.copy_(joined);
}

std::array<at::Tensor, 3> backward_of(const BlockOperands& operands, const at::Tensor& grad, const at::Tensor& output,
                                      const at::Tensor& logsumexp) {
  if (!is_flash(operands)) return backward_by_products(operands, grad, output, logsumexp);
  auto [query, key, value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad, operands.query, operands.key, operands.value, output, finite(logsumexp), 0.0, operands.is_causal,
      flash_mask(operands), operands.scale);
  return {query, key, value};
}

}  // namespace fsdp::parallel
