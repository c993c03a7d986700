#include "activation/kept_results.h"

#include <ATen/core/enum_tag.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fsdp/activation_checkpoint.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <span>

#include "comm/core/check.h"
#include "runtime/compat.h"

namespace fsdp {

bool is_product(std::string_view operator_name) {
  constexpr auto kProducts = std::to_array<std::string_view>(
      {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addbmm", "aten::mv", "aten::addmv", "aten::dot",
       "aten::convolution", "aten::_convolution", "aten::convolution_overrideable", "aten::mkldnn_convolution",
       "aten::cudnn_convolution", "aten::_scaled_mm", "aten::_scaled_dot_product_flash_attention_for_cpu",
       "aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_efficient_attention",
       "aten::_scaled_dot_product_cudnn_attention"});
  return std::ranges::find(kProducts, operator_name) != kProducts.end();
}

namespace activation {
namespace {

using Stack = torch::jit::Stack;

constexpr c10::DispatchKeySet kBelowKeptResults(c10::DispatchKeySet::FULL_AFTER, runtime::kKeptResultsKey);

thread_local KeptResults::Scope* innermost_pass = nullptr;

// A tensor of its own on the same memory, which sees writes to it: autograd gives the result a history.
at::Tensor alias_of(const at::Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), /*allow_tensor_metadata_change=*/false));
}

uint32_t version_of(const at::Tensor& tensor) {
  const auto& versions = tensor.unsafeGetTensorImpl()->version_counter();
  return versions.enabled() ? versions.current_version() : 0;
}

bool is_defined_tensor(const c10::IValue& value) { return value.isTensor() && value.toTensor().defined(); }

}  // namespace

KeptResults::Scope::Scope(KeptResults& results, Pass pass)
    : results_(results),
      pass_(pass),
      outer_(innermost_pass),
      was_included_(c10::impl::tls_is_dispatch_key_included(runtime::kKeptResultsKey)) {
  if (results.keeps_) {
    // Kept for ever: it does nothing outside of scopes.
    static auto* library = [] {
      auto* fallback = new torch::Library(torch::Library::IMPL, "_", runtime::kKeptResultsKey, __FILE__, __LINE__);
      fallback->fallback(torch::CppFunction::makeFromBoxedFunction<&KeptResults::intercept>());
      return fallback;
    }();
    static_cast<void>(library);
  }
  innermost_pass = this;
  c10::impl::tls_set_dispatch_key_included(runtime::kKeptResultsKey, static_cast<bool>(results.keeps_));
}

KeptResults::Scope::~Scope() {
  innermost_pass = outer_;
  c10::impl::tls_set_dispatch_key_included(runtime::kKeptResultsKey, was_included_);
}

bool KeptResults::is_scope_open() { return innermost_pass != nullptr; }

int64_t KeptResults::bytes() const {
  int64_t bytes = 0;
  for (const auto& call : calls_)
    for (const auto& result : call.results) bytes += static_cast<int64_t>(result.tensor.nbytes());
  return bytes;
}

bool KeptResults::keeps(const c10::OperatorHandle& op) const {
  const auto& schema = op.schema();
  const auto is_plain = [](const c10::Argument& argument) { return argument.alias_info() == nullptr; };
  return std::ranges::all_of(schema.arguments(), is_plain) && std::ranges::all_of(schema.returns(), is_plain) &&
         !op.hasTag(at::Tag::nondeterministic_seeded) && keeps_(op.operator_name().name);
}

void KeptResults::intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  auto* scope = innermost_pass;
  if (scope == nullptr || !scope->results_.keeps(op)) {
    if (scope != nullptr && scope->pass_ == Pass::kForward) scope->results_.forget_written(op, *stack);
    op.redispatchBoxed(keys & kBelowKeptResults, stack);
    return;
  }
  auto& results = scope->results_;
  if (scope->pass_ == Pass::kAgain) {
    require(scope->next_ < results.calls_.size() && results.calls_[scope->next_].op == op,
            "fsdp::activation_checkpoint: a part that is computed again calls ", op.operator_name().name,
            " where forward called ",
            scope->next_ < results.calls_.size() ? results.calls_[scope->next_].op.operator_name().name : "nothing",
            ", so results that were kept do not fit. fn and CheckpointOptions::keeps_results must do the same both times");
    if (give(results.calls_[scope->next_++], *stack)) return;
  }
  {
    const c10::impl::ExcludeDispatchKeyGuard unseen(runtime::kKeptResultsKey);
    op.redispatchBoxed(keys & kBelowKeptResults, stack);
  }
  if (scope->pass_ == Pass::kForward) results.keep(op, *stack);
}

void KeptResults::keep(const c10::OperatorHandle& op, const Stack& stack) {
  Call call{op, {}};
  const auto results = std::span(stack).last(op.schema().returns().size());
  if (std::ranges::all_of(results, is_defined_tensor))
    for (const auto& result : results)
      call.results.push_back({alias_of(result.toTensor()), version_of(result.toTensor())});
  calls_.push_back(std::move(call));
}

void KeptResults::forget(const at::Tensor& written) {
  const auto is_written = [&](const Result& result) { return result.tensor.is_alias_of(written); };
  for (auto& call : calls_)
    if (std::ranges::any_of(call.results, is_written)) call.results.clear();
}

// Versions do not tell of writes through `_unsafe_view`, as a linear layer adds its bias: the memory tells.
void KeptResults::forget_written(const c10::OperatorHandle& op, const Stack& stack) {
  if (calls_.empty() || !op.schema().is_mutable()) return;
  const auto& arguments = op.schema().arguments();
  const auto values = std::span(stack).last(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    if (is_defined_tensor(values[i])) forget(values[i].toTensor());
    if (values[i].isTensorList())
      for (const at::Tensor& written : values[i].toTensorVector()) forget(written);
  }
}

bool KeptResults::give(const Call& call, Stack& stack) {
  const auto is_unwritten = [](const Result& result) { return version_of(result.tensor) == result.version; };
  if (call.results.empty() || !std::ranges::all_of(call.results, is_unwritten)) return false;
  torch::jit::drop(stack, call.op.schema().arguments().size());
  for (const auto& result : call.results) stack.emplace_back(alias_of(result.tensor));
  return true;
}

}  // namespace activation
}  // namespace fsdp
