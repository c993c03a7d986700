#include "runtime/interceptor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/batch_norm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/conv1d_ops.h>
#include <ATen/ops/conv2d_ops.h>
#include <ATen/ops/conv3d_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/group_norm_ops.h>
#include <ATen/ops/layer_norm_ops.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/matmul_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/mv_ops.h>
#include <ATen/ops/prelu_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/t_ops.h>
#include <ATen/ops/transpose_ops.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "runtime/backward_hooks.h"
#include "runtime/compat.h"
#include "runtime/operand_access.h"

namespace fsdp::runtime {
namespace {

constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kShardedKey);

// Every defined tensor with the index of its value, those in lists too.
template <class Visit>
void visit_tensors(std::span<const c10::IValue> values, const Visit& visit) {
  const auto visit_one = [&](const c10::IValue& value, size_t i) {
    if (const auto& tensor = value.toTensor(); tensor.defined()) visit(tensor, i);
  };
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].isTensor()) {
      visit_one(values[i], i);
    } else if (values[i].isList()) {
      for (const c10::IValue& element : values[i].toListRef())
        if (element.isTensor()) visit_one(element, i);
    }
  }
}

// Any operator.
void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  OperatorCall call{.op = op, .arguments = std::span(*stack).last(schema.arguments().size())};
  visit_tensors(call.arguments, [&](const at::Tensor& tensor, size_t i) { call.tensors.push_back({&tensor, i}); });
  OperandGroups groups;
  prepare(call, groups);
  {
    const c10::impl::ExcludeDispatchKeyGuard below(kShardedKey);
    op.redispatchBoxed(keys & kBelow, stack);
  }
  if (groups.empty() || !at::GradMode::is_enabled()) return;
  visit_tensors(std::span(*stack).last(schema.returns().size()),
                [&](const at::Tensor& tensor, size_t) { groups.hook(tensor); });
}

// The same for one operator that models call often, without the cost of moving its arguments to a stack and back.
template <class Operator, class Signature = decltype(Operator::redispatch)>
struct Unboxed;

template <class Operator, class... Arguments>
struct Unboxed<Operator, at::Tensor(c10::DispatchKeySet, Arguments...)> {
  static at::Tensor intercept(c10::DispatchKeySet keys, Arguments... arguments) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(Operator::name, Operator::overload_name);
    static const auto traits = operator_traits(op);
    OperatorCall call{.op = op, .traits = &traits};
    size_t i = 0;
    (add(call, i++, arguments), ...);
    OperandGroups groups;
    prepare(call, groups);
    auto result = [&] {
      const c10::impl::ExcludeDispatchKeyGuard below(kShardedKey);
      return Operator::redispatch(keys & kBelow, std::forward<Arguments>(arguments)...);
    }();
    if (!groups.empty()) groups.hook(result);  // of a new tensor: no node unless autograd records
    return result;
  }

  static void add(OperatorCall& call, size_t i, const at::Tensor& tensor) {
    if (tensor.defined()) call.tensors.push_back({&tensor, i});
  }
  static void add(OperatorCall& call, size_t i, const std::optional<at::Tensor>& tensor) {
    if (tensor) add(call, i, *tensor);
  }
  template <class Other>
  static void add(OperatorCall&, size_t, const Other&) {
    static_assert(std::is_arithmetic_v<Other> || std::is_same_v<Other, at::Scalar> ||
                      std::is_same_v<Other, c10::SymInt> || std::is_same_v<Other, c10::SymIntArrayRef>,
                  "may hold tensors");
  }
};

template <class... Operators>
void register_unboxed(torch::Library& library) {
  (library.impl(c10::toString(c10::OperatorName(Operators::name, Operators::overload_name)).c_str(),
                TORCH_FN((Unboxed<Operators>::intercept))),
   ...);
}

}  // namespace

void install_interceptor() {
  // Kept for ever: tensors that outlive main() still dispatch.
  static auto* libraries = [] {
    auto* any = new torch::Library(torch::Library::IMPL, "_", kShardedKey, __FILE__, __LINE__);
    any->fallback(torch::CppFunction::makeFromBoxedFunction<&intercept>());
    auto* often = new torch::Library(torch::Library::IMPL, "aten", kShardedKey, __FILE__, __LINE__);
    namespace ops = at::_ops;
    register_unboxed<ops::add_Tensor, ops::addmm, ops::batch_norm, ops::bmm, ops::conv1d, ops::conv2d, ops::conv3d,
                     ops::div_Tensor, ops::embedding, ops::group_norm, ops::layer_norm, ops::linear, ops::matmul,
                     ops::mm, ops::mul_Tensor, ops::mv, ops::prelu, ops::sub_Tensor, ops::t, ops::transpose_int>(
        *often);
    return new std::pair(any, often);
  }();
  static_cast<void>(libraries);
  observe_backward_nodes();
}

}  // namespace fsdp::runtime
