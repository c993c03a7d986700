#include "activation/kept_results.h"

#include <ATen/core/enum_tag.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fsdp/activation_checkpoint.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <optional>
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

std::span<const c10::IValue> arguments_of(const c10::OperatorHandle& op, const Stack& stack) {
  return std::span(stack).last(op.schema().arguments().size());
}

void replace_arguments(const c10::OperatorHandle& op, Stack& stack, const std::vector<c10::IValue>& results) {
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.insert(stack.end(), results.begin(), results.end());
}

// Returns true if the operator draws random numbers. Fused attention is tagged as random, but draws random numbers only
// for dropout.
bool is_random(const c10::OperatorHandle& op, const Stack& stack) {
  if (!op.hasTag(at::Tag::nondeterministic_seeded)) return false;
  const auto dropout = op.schema().argumentIndexWithName("dropout_p");
  if (!dropout) return true;
  return arguments_of(op, stack)[static_cast<size_t>(*dropout)].toScalar().toDouble() != 0.0;
}

// Returns true if the operator is a cast. Autocast caches casts of parameters in forward, so the two runs of a region
// may differ in their number of casts.
bool is_cast(const c10::OperatorHandle& op) { return op.operator_name().name == "aten::_to_copy"; }

// Returns true if the value is a number or a tensor. The tensor may be undefined, as some results of fused attention
// are.
bool can_be_kept(const c10::IValue& value) {
  return value.isTensor() || value.isInt() || value.isSymInt() || value.isDouble() || value.isBool();
}

bool is_defined_tensor(const c10::IValue& value) { return value.isTensor() && value.toTensor().defined(); }

// Returns an alias of a tensor. The tensor itself cannot be kept, because autograd will add its history to it.
c10::IValue alias_of(const c10::IValue& value, const c10::VariableVersion& version) {
  const auto* impl = value.toTensor().unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(version, /*allow_tensor_metadata_change=*/false));
}

// Returns an alias that shares the tensor's version counter, so that writes to the tensor are noticed.
c10::IValue alias_of(const c10::IValue& value) {
  if (!is_defined_tensor(value)) return value;
  return alias_of(value, value.toTensor().unsafeGetTensorImpl()->version_counter());
}

uint32_t version_of(const c10::IValue& value) {
  if (!is_defined_tensor(value)) return 0;
  const auto& versions = value.toTensor().unsafeGetTensorImpl()->version_counter();
  return versions.enabled() ? versions.current_version() : 0;
}

bool is_on(const c10::IValue& value, const at::Tensor& tensor) {
  if (!is_defined_tensor(value) || !tensor.has_storage()) return false;
  return value.toTensor().has_storage() && value.toTensor().is_alias_of(tensor);
}

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// Returns true for `_unsafe_view`, which returns a view although its schema does not say so.
bool is_unsafe_view(const c10::OperatorHandle& op) { return op.operator_name().name == "aten::_unsafe_view"; }

// Returns the tensor that an operator writes and returns, or nothing if the operator has any other effect.
std::optional<at::Tensor> all_it_writes(const c10::OperatorHandle& op, const Stack& stack) {
  const auto& arguments = op.schema().arguments();
  const auto& returns = op.schema().returns();
  if (std::ranges::count_if(arguments, writes) != 1 || returns.size() != 1 || !writes(returns[0])) return std::nullopt;
  if (is_random(op, stack) || op.hasTag(at::Tag::inplace_view)) return std::nullopt;
  const auto place = std::ranges::find_if(arguments, writes) - arguments.begin();
  const auto& written = arguments_of(op, stack)[static_cast<size_t>(place)];
  return is_defined_tensor(written) ? std::optional(written.toTensor()) : std::nullopt;
}

}  // namespace

KeptResults::Scope::Scope(KeptResults& results, Pass pass)
    : results_(results),
      pass_(pass),
      task_(torch::autograd::get_current_graph_task_id()),
      outer_(innermost_pass),
      was_included_(c10::impl::tls_is_dispatch_key_included(runtime::kKeptResultsKey)) {
  if (results.keeps_) {
    // The fallback is never removed. It is not called outside scopes.
    static auto* library = [] {
      auto* fallback = new torch::Library(torch::Library::IMPL, "_", runtime::kKeptResultsKey, __FILE__, __LINE__);
      fallback->fallback(torch::CppFunction::makeFromBoxedFunction<&KeptResults::intercept>());
      return fallback;
    }();
    static_cast<void>(library);
  }
  innermost_pass = this;
  c10::impl::tls_set_dispatch_key_included(runtime::kKeptResultsKey, was_included_ || results.keeps_ != nullptr);
}

KeptResults::Scope::~Scope() {
  if (pass_ == Pass::kForward) results_.record_versions();
  innermost_pass = outer_;
  c10::impl::tls_set_dispatch_key_included(runtime::kKeptResultsKey, was_included_);
}

KeptResults::Scope* KeptResults::Scope::innermost() {
  const bool counts =
      innermost_pass != nullptr && innermost_pass->task_ == torch::autograd::get_current_graph_task_id();
  return counts ? innermost_pass : nullptr;
}

int64_t KeptResults::bytes() const {
  int64_t bytes = 0;
  for (const auto& call : calls_)
    for (const auto& result : call.results)
      if (is_defined_tensor(result.value)) bytes += static_cast<int64_t>(result.value.toTensor().nbytes());
  return bytes;
}

bool KeptResults::keeps(const c10::OperatorHandle& op, const Stack& stack) const {
  const auto& schema = op.schema();
  const auto is_plain = [](const c10::Argument& argument) { return argument.alias_info() == nullptr; };
  return keeps_ && std::ranges::all_of(schema.arguments(), is_plain) &&
         std::ranges::all_of(schema.returns(), is_plain) && !is_cast(op) && !is_random(op, stack) &&
         keeps_(op.operator_name().name);
}

void KeptResults::intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  auto* const innermost = Scope::innermost();
  const auto written = all_it_writes(op, *stack);
  for (auto* scope = innermost; scope != nullptr; scope = scope->outer()) {
    if (scope->pass_ == Pass::kForward)
      scope->results_.note_uses(op, *stack, /*writes_one=*/written.has_value());
    else if (written && scope->gave(*written))
      return replace_arguments(op, *stack, {*written});
  }
  const bool is_kept = innermost != nullptr && innermost->results_.keeps(op, *stack);
  if (is_kept && innermost->pass_ == Pass::kAgain)
    if (const auto results = innermost->next_results(op)) return replace_arguments(op, *stack, *results);
  {
    // Operators that this one calls are not intercepted, because the second run skips them if it skips this one.
    std::optional<c10::impl::ExcludeDispatchKeyGuard> unseen;
    if (is_kept || is_cast(op) || op.schema().is_mutable()) unseen.emplace(runtime::kKeptResultsKey);
    op.redispatchBoxed(keys & kBelowKeptResults, stack);
  }
  if (is_kept && innermost->pass_ == Pass::kForward) innermost->results_.keep(op, *stack);
  if (!is_unsafe_view(op)) return;
  for (auto* scope = innermost; scope != nullptr; scope = scope->outer())
    if (scope->pass_ == Pass::kForward) scope->results_.note_view(stack->back().toTensor());
}

bool KeptResults::Scope::gave(const at::Tensor& tensor) const {
  return std::ranges::any_of(given_, [&](const c10::IValue& given) { return is_on(given, tensor); });
}

std::optional<std::vector<c10::IValue>> KeptResults::Scope::next_results(const c10::OperatorHandle& op) {
  const auto& calls = results_.calls_;
  require(next_ < calls.size() && calls[next_].op == op,
          "fsdp::activation_checkpoint: when fn is computed again, it calls ", op.operator_name().name,
          " where forward called ", next_ < calls.size() ? calls[next_].op.operator_name().name : "nothing",
          ", so the kept results do not match. fn and CheckpointOptions::keeps_results must do the same both "
          "times");
  const auto& call = calls[next_++];
  if (call.results.empty() || !call.is_unwritten()) return std::nullopt;
  std::vector<c10::IValue> results;
  for (const auto& [value, version] : call.results)  // a new version counter, because skipped writes do not count
    results.push_back(is_defined_tensor(value) ? alias_of(value, c10::VariableVersion(0)) : value);
  given_.insert(given_.end(), results.begin(), results.end());
  return results;
}

bool KeptResults::Call::has(const at::Tensor& tensor) const {
  return std::ranges::any_of(results, [&](const Result& result) { return is_on(result.value, tensor); });
}

bool KeptResults::Call::is_unwritten() const {
  const auto is_as_it_was = [](const Result& result) { return version_of(result.value) == result.version; };
  return std::ranges::all_of(results, is_as_it_was) && std::ranges::all_of(views, is_as_it_was);
}

void KeptResults::keep(const c10::OperatorHandle& op, const Stack& stack) {
  Call call{op};
  const auto results = std::span(stack).last(op.schema().returns().size());
  if (std::ranges::all_of(results, can_be_kept))
    for (const auto& result : results) call.results.push_back({alias_of(result)});
  calls_.push_back(std::move(call));
}

void KeptResults::record_versions() {
  for (auto& call : calls_) {
    for (auto& result : call.results) result.version = version_of(result.value);
    for (auto& view : call.views) view.version = version_of(view.value);
  }
}

void KeptResults::note_uses(const c10::OperatorHandle& op, const Stack& stack, bool writes_one) {
  if (calls_.empty() || is_unsafe_view(op)) return;
  const auto& arguments = op.schema().arguments();
  const auto values = arguments_of(op, stack);
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].alias_info() != nullptr && !writes(arguments[i])) continue;  // `op` only makes a view of it
    const auto note = [&](const at::Tensor& tensor) {
      if (writes(arguments[i]))
        note_write(tensor, writes_one);
      else
        note_read(tensor);
    };
    if (is_defined_tensor(values[i])) note(values[i].toTensor());
    if (values[i].isTensorList())
      for (const at::Tensor& tensor : values[i].toTensorVector()) note(tensor);
    if (values[i].isOptionalTensorList())
      for (const auto& tensor : values[i].toOptionalTensorVector())
        if (tensor && tensor->defined()) note(*tensor);
  }
}

void KeptResults::note_write(const at::Tensor& written, bool can_be_left_out) {
  for (auto& call : calls_)
    if (call.has(written) && (call.was_read || !can_be_left_out)) call.forget();
}

void KeptResults::note_read(const at::Tensor& read) {
  for (auto& call : calls_) call.was_read |= call.has(read);
}

void KeptResults::note_view(const at::Tensor& view) {
  for (auto& call : calls_)
    if (call.has(view)) call.views.push_back({alias_of(view)});
}

}  // namespace activation
}  // namespace fsdp
