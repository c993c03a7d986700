#include "parallel/attention_operator.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <vector>

#include "comm/core/check.h"
#include "parallel/checked_call.h"
#include "parallel/sequence_scope.h"
#include "parallel/token_slices.h"

namespace fsdp::parallel {
namespace {

constexpr c10::DispatchKey kKeys[] = {c10::DispatchKey::CPU, c10::DispatchKey::CUDA, c10::DispatchKey::AutogradCPU,
                                      c10::DispatchKey::AutogradCUDA};

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask, double dropout, bool is_causal, std::optional<double> scale,
                     bool enable_gqa) {
  if (auto& place = TokenSlices::current(); place.slices)
    return place.slices->attend(
        place, {query, key, value, mask.value_or(at::Tensor()), dropout, is_causal, scale, enable_gqa});
  const auto scope = SequenceScope::current();
  if (!scope || scope->ranks() == 1)
    return at::native::scaled_dot_product_attention(query, key, value, mask, dropout, is_causal, scale, enable_gqa);
  return attention_over_ranks(*scope,
                              {query, key, value, mask.value_or(at::Tensor()), dropout, is_causal, scale, enable_gqa});
}

}  // namespace

void see_attention() {
  // The registration is never removed, because threads may still call the operator after main() has returned.
  static const auto* libraries = [] {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::scaled_dot_product_attention", "");
    for (const auto key : kKeys)
      if (op.hasKernelForDispatchKey(key))
        throw Error(
            str_cat("fsdp::SequenceParallel: expected LibTorch's scaled_dot_product_attention, found a kernel "
                    "that another library, or another copy of fsdp, registered for ",
                    c10::toString(key), ". Link fsdp into one shared library for the whole program."));
    auto* ours = new std::vector<std::unique_ptr<torch::Library>>;
    for (const auto key : kKeys)
      ours->push_back(std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key, __FILE__, __LINE__));
    for (const auto& library : *ours) library->impl("scaled_dot_product_attention", TORCH_FN(attention));
    return ours;
  }();
  static_cast<void>(libraries);
}

}  // namespace fsdp::parallel
