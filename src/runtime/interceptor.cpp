#include "runtime/interceptor.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
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

// Whether a schema's type is a T in C++.
template <class T>
struct Is;
template <c10::TypeKind kind>
struct IsKind {
  static bool in(const c10::Type& type) { return type.kind() == kind; }
};
template <>
struct Is<at::Tensor> : IsKind<c10::TypeKind::TensorType> {};
template <>
struct Is<at::Scalar> : IsKind<c10::TypeKind::NumberType> {};
template <>
struct Is<at::ScalarType> : IsKind<c10::TypeKind::ScalarTypeType> {};
template <>
struct Is<c10::SymInt> : IsKind<c10::TypeKind::SymIntType> {};
template <>
struct Is<int64_t> : IsKind<c10::TypeKind::IntType> {};
template <>
struct Is<double> : IsKind<c10::TypeKind::FloatType> {};
template <>
struct Is<bool> : IsKind<c10::TypeKind::BoolType> {};
template <class T>
struct IsList {
  static bool in(const c10::Type& type) {
    return type.kind() == c10::TypeKind::ListType && Is<T>::in(*type.containedType(0));
  }
};
// No lists of tensors: add() below would not see them.
template <>
struct Is<c10::SymIntArrayRef> : IsList<c10::SymInt> {};
template <>
struct Is<c10::IntArrayRef> : IsList<int64_t> {};
template <class T>
struct Is<std::optional<T>> {
  static bool in(const c10::Type& type) {
    return type.kind() == c10::TypeKind::OptionalType && Is<T>::in(*type.containedType(0));
  }
};
template <class T>
struct Is<c10::OptionalArrayRef<T>> : Is<std::optional<c10::ArrayRef<T>>> {};

// The same for an operator of one C++ signature, without the cost of moving its arguments to a stack and back.
template <class Signature>
class Unboxed;

template <class... Arguments>
class Unboxed<at::Tensor(Arguments...)> {
 public:
  explicit Unboxed(const c10::OperatorHandle& op)
      : op_(op.typed<at::Tensor(Arguments...)>()), traits_(operator_traits(op)) {}

  at::Tensor operator()(c10::DispatchKeySet keys, Arguments... arguments) const {
    OperatorCall call{.op = op_, .traits = &traits_};
    size_t i = 0;
    (add(call, i++, arguments), ...);
    OperandGroups groups;
    prepare(call, groups);
    auto result = [&] {
      const c10::impl::ExcludeDispatchKeyGuard below(kShardedKey);
      return op_.redispatch(keys & kBelow, std::forward<Arguments>(arguments)...);
    }();
    // An operand that comes back, as of type_as, has a node of another operator.
    if (!groups.empty() && result.defined() &&
        std::ranges::none_of(call.tensors,
                             [&](const OperatorCall::Operand& operand) { return operand.tensor->is_same(result); }))
      groups.hook(result);
    return result;
  }

  // Whether the operator has this signature, writes to none of its operands and takes no rows by number.
  static bool fits(const c10::OperatorHandle& op) {
    const auto& schema = op.schema();
    if (schema.arguments().size() != sizeof...(Arguments) || schema.returns().size() != 1) return false;
    size_t i = 0;
    if (!Is<at::Tensor>::in(*schema.returns()[0].real_type()) ||
        !(Is<std::decay_t<Arguments>>::in(*schema.arguments()[i++].real_type()) && ...))
      return false;
    const auto traits = operator_traits(op);
    return traits.written_arguments == 0 && !traits.selecting_argument;
  }

 private:
  static void add(OperatorCall& call, size_t i, const at::Tensor& tensor) {
    if (tensor.defined()) call.tensors.push_back({&tensor, i});
  }
  static void add(OperatorCall& call, size_t i, const std::optional<at::Tensor>& tensor) {
    if (tensor) add(call, i, *tensor);
  }
  template <class Other>
  static void add(OperatorCall&, size_t, const Other&) {}

  c10::TypedOperatorHandle<at::Tensor(Arguments...)> op_;
  OperatorTraits traits_;
};

using TensorRef = const at::Tensor&;
using OptionalTensorRef = const std::optional<at::Tensor>&;
using ScalarRef = const at::Scalar&;
using OptionalScalarRef = const std::optional<at::Scalar>&;
using Sizes = c10::SymIntArrayRef;
using Dtype = std::optional<at::ScalarType>;

template <class Signature>
bool register_if_it_fits(torch::Library& library, const c10::OperatorHandle& op) {
  if (!Unboxed<Signature>::fits(op)) return false;
  try {
    library.impl(c10::toString(op.operator_name()).c_str(), Unboxed<Signature>(op));
  } catch (const c10::Error&) {
    // Its kernels have another signature than its schema suggests, which no release known has: it stays boxed.
  }
  return true;
}

template <class... Signatures>
void register_unboxed(torch::Library& library, const c10::OperatorHandle& op) {
  static_cast<void>((register_if_it_fits<Signatures>(library, op) || ...));
}

void register_common_signatures(torch::Library& library) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op) continue;  // kernels came before the operator was defined
    register_unboxed<
        at::Tensor(TensorRef), at::Tensor(TensorRef, TensorRef), at::Tensor(TensorRef, TensorRef, TensorRef),
        at::Tensor(TensorRef, ScalarRef), at::Tensor(TensorRef, TensorRef, ScalarRef),
        at::Tensor(TensorRef, TensorRef, TensorRef, ScalarRef),
        at::Tensor(TensorRef, TensorRef, TensorRef, ScalarRef, ScalarRef), at::Tensor(TensorRef, int64_t),
        at::Tensor(TensorRef, int64_t, int64_t), at::Tensor(TensorRef, Sizes), at::Tensor(TensorRef, Sizes, bool),
        at::Tensor(TensorRef, c10::IntArrayRef),                                                       // permute
        at::Tensor(TensorRef, OptionalScalarRef, OptionalScalarRef),                                   // clamp
        at::Tensor(TensorRef, Dtype), at::Tensor(TensorRef, at::OptionalIntArrayRef, bool, Dtype),     // sum, mean
        at::Tensor(TensorRef, int64_t, Dtype),                                                         // softmax
        at::Tensor(TensorRef, TensorRef, OptionalTensorRef),                                           // linear
        at::Tensor(TensorRef, TensorRef, OptionalTensorRef, Sizes, Sizes, Sizes, c10::SymInt),         // convolutions
        at::Tensor(TensorRef, TensorRef, OptionalTensorRef, Sizes, Sizes, Sizes, c10::SymInt, Sizes),  // transposed
        at::Tensor(TensorRef, TensorRef, c10::SymInt, bool, bool),                                     // embedding
        at::Tensor(TensorRef, Sizes, OptionalTensorRef, std::optional<double>),                        // rms_norm
        at::Tensor(TensorRef, Sizes, OptionalTensorRef, OptionalTensorRef, double, bool),              // layer_norm
        at::Tensor(TensorRef, int64_t, OptionalTensorRef, OptionalTensorRef, double, bool),            // group_norm
        at::Tensor(TensorRef, OptionalTensorRef, OptionalTensorRef, OptionalTensorRef, OptionalTensorRef, bool, double,
                   double, bool)>(library, *op);  // batch_norm
  }
}

}  // namespace

void install_interceptor() {
  // Kept for ever: tensors that outlive main() still dispatch.
  static auto* libraries = [] {
    auto* any = new torch::Library(torch::Library::IMPL, "_", kShardedKey, __FILE__, __LINE__);
    any->fallback(torch::CppFunction::makeFromBoxedFunction<&intercept>());
    auto* common = new torch::Library(torch::Library::IMPL, "aten", kShardedKey, __FILE__, __LINE__);
    register_common_signatures(*common);
    return new std::pair(any, common);
  }();
  static_cast<void>(libraries);
  observe_backward_nodes();
}

}  // namespace fsdp::runtime
