#include "parallel/token_slices.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "comm/core/check.h"

namespace fsdp::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Keys or values of a slice as the slice's own attention gets them. Backward adds the gradient that the later slices
// have accumulated in `leaf`.
struct WithLaterGradients : torch::autograd::Function<WithLaterGradients> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& own, const at::Tensor& leaf) {
    context->saved_data["leaf"] = leaf;
    return own.view_as(own);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto later = std::exchange(context->saved_data["leaf"].toTensor().mutable_grad(), at::Tensor());
    return {later.defined() ? gradients[0] + later : gradients[0], {}};
  }
};

}  // namespace

TokenSlices::Place& TokenSlices::current() {
  thread_local Place place;
  return place;
}

TokenSlices::Entered::Entered(Place place) : before_(std::exchange(current(), std::move(place))) {}
TokenSlices::Entered::~Entered() { current() = std::move(before_); }

at::Tensor TokenSlices::attend(Place& place, const AttentionArguments& arguments) {
  const auto& [query, key, value, mask, dropout, is_causal, scale, enable_gqa] = arguments;
  const auto expect = [&](bool ok, const auto&... message) {
    if (!ok) require(false, group_->where("scaled_dot_product_attention"), message...);
  };
  expect(is_causal && !mask.defined(), "expected causal attention in a model that runs slice by slice, found ",
         mask.defined() ? "a mask" : "attention to later tokens",
         ". Give is_causal = true without a mask, or choose a schedule of whole sequences");
  expect(dropout == 0,
         "dropout inside attention is not supported in a model that runs slice by slice, found a probability of ",
         dropout, ". Apply dropout to the result of attention instead");
  expect(query.size(-2) == key.size(-2), "expected as many keys as queries, found sizes ", query.sizes(), " and ",
         key.sizes());
  const size_t attention = place.attentions++;
  if (attention == kept_.size()) kept_.emplace_back();
  auto& slices = kept_.at(attention);
  // If activation checkpointing computes the slice again, its leaves exist already.
  if (place.slice == slices.size()) {
    const auto leaf_of = [](const at::Tensor& own) { return own.detach().requires_grad_(own.requires_grad()); };
    slices.push_back({leaf_of(key), leaf_of(value)});
  }
  expect(place.slice < slices.size(), "slice ", place.slice,
         " runs an attention that earlier slices did not run. The choice of layers that run must not depend on the "
         "tokens");
  std::vector<at::Tensor> keys, values;
  for (size_t slice = 0; slice < place.slice; ++slice) {
    keys.push_back(slices[slice].key);
    values.push_back(slices[slice].value);
  }
  const auto& own = slices[place.slice];
  keys.push_back(own.key.requires_grad() ? WithLaterGradients::apply(key, own.key) : key);
  values.push_back(own.value.requires_grad() ? WithLaterGradients::apply(value, own.value) : value);
  const auto all_keys = at::cat(keys, -2);
  const int64_t queries = query.size(-2), before = all_keys.size(-2) - queries;
  if (before == 0)
    return at::native::scaled_dot_product_attention(query, keys[0], values[0], {}, 0, true, scale, enable_gqa);
  const auto sees = at::ones({queries, before + queries}, query.options().dtype(at::kBool)).tril(before);
  return at::native::scaled_dot_product_attention(query, all_keys, at::cat(values, -2), sees, 0, false, scale,
                                                  enable_gqa);
}

}  // namespace fsdp::parallel
