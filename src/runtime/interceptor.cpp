#include "runtime/interceptor.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <atomic>
#include <span>

#include "comm/core/check.h"
#include "runtime/backward.h"
#include "runtime/compat.h"
#include "runtime/operand_access.h"
#include "runtime/refusal.h"

namespace fsdp::runtime {
namespace {

// Every defined tensor with the index of its value, those in lists too.
template <class Visit>
void visit_tensors(std::span<const c10::IValue> values, const Visit& visit) {
  const auto visit_one = [&](const c10::IValue& value, size_t i, size_t element) {
    if (const auto& tensor = value.toTensor(); tensor.defined()) visit(tensor, i, element);
  };
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].isTensor()) {
      visit_one(values[i], i, 0);
    } else if (values[i].isList()) {
      const auto elements = values[i].toListRef();
      for (size_t j = 0; j < elements.size(); ++j)
        if (elements[j].isTensor()) visit_one(elements[j], i, j);
    }
  }
}

// Does what has to be done before and after an operator that takes a sharded tensor, and calls it in between.
void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto traits = operator_traits(op);
  const auto below = keys & kBelowSharded;
  if (const auto among = among_results(traits, std::span(*stack).last(schema.arguments().size())); among.holds) {
    const c10::impl::ExcludeDispatchKeyGuard unseen(kShardedKey);
    op.redispatchBoxed(below, stack);
    if (among.made)
      visit_tensors(std::span(*stack).last(schema.returns().size()),
                    [&](const at::Tensor& tensor, size_t, size_t) { mark_as_rows(tensor, among.made); });
    return;
  }
  OperatorCall call{.op = op, .traits = traits, .arguments = std::span(*stack).last(schema.arguments().size())};
  if (const auto dim = traits.selecting_argument; dim && *dim < call.arguments.size() && call.arguments[*dim].isInt())
    call.selecting_dim = call.arguments[*dim].toInt();
  visit_tensors(call.arguments,
                [&](const at::Tensor& tensor, size_t i, size_t element) { call.add(i, tensor, element); });
  OperandGroups groups;
  RowResults results;
  prepare(call, groups, results);
  const uint64_t first_node = at::sequence_number::peek();
  {
    const c10::impl::ExcludeDispatchKeyGuard unseen(kShardedKey);
    op.redispatchBoxed(below, stack);
  }
  const auto returned = std::span(*stack).last(schema.returns().size());
  if (!results.empty()) {
    if (traits.written_arguments == 0)
      visit_tensors(returned, [&](const at::Tensor& tensor, size_t, size_t j) { results.mark_made(tensor, j); });
    results.mark_written();
  }
  if (groups.empty() || !at::GradMode::is_enabled()) return;
  visit_tensors(returned, [&](const at::Tensor& tensor, size_t, size_t) { groups.hook(tensor, first_node); });
}

std::atomic<bool> is_installed = false;

}  // namespace

bool another_copy_intercepts() {
  return !is_installed && c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kShardedKey);
}

void install_interceptor() {
  // Kept for ever: tensors that outlive main() still dispatch.
  static auto* library = [] {
    require(
        !another_copy_intercepts(),
        "fsdp::fully_shard: another copy of fsdp has sharded something in this process, e.g. the program's, and this "
        "one is in a library that it opened. Two copies do not know each other's parameters: link fsdp into one of "
        "them, a shared library that both use");
    auto* fallback = new torch::Library(torch::Library::IMPL, "_", kShardedKey, __FILE__, __LINE__);
    fallback->fallback(torch::CppFunction::makeFromBoxedFunction<&intercept>());
    is_installed = true;
    return fallback;
  }();
  static_cast<void>(library);
  observe_backward_nodes();
  observe_written_tensors();
}

}  // namespace fsdp::runtime
