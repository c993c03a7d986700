#include <ATen/Context.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "memory/block.h"
#include "runtime/compat.h"
#include "runtime/deferred_value.h"
#include "runtime/operator_traits.h"

namespace fsdp::runtime {
namespace {

using Kind = DeferredRecording::Kind;
using Stack = torch::jit::Stack;

constexpr int kLongestChain = 500;  // maximum length of a chain of calls; Replay carries it out recursively

thread_local Kind kind_of_thread = Kind::kPutOff;

struct Found {
  at::Tensor tensor;
  size_t value = 0, element = 0;
};

std::vector<Found> tensors_in(std::span<const c10::IValue> values) {
  std::vector<Found> found;
  visit_tensors(values, [&](const at::Tensor& tensor, size_t i, size_t j) { found.push_back({tensor, i, j}); });
  return found;
}

bool share_storage(const at::Tensor& a, const at::Tensor& b) {
  return a.has_storage() && b.has_storage() && a.storage().is_alias_of(b.storage());
}

std::optional<size_t> argument_of(const c10::OperatorHandle& op, const char* name) {
  const auto index = op.schema().argumentIndexWithName(name);
  return index ? std::optional(static_cast<size_t>(*index)) : std::nullopt;
}

// Returns true inside torch::tensor(vector), which writes its memory without an operator. The function is recognised by
// the excluded dispatch keys: no other caller excludes autograd's keys but not ADInplaceOrView.
bool is_literal() {
  const auto excluded = c10::impl::tls_local_dispatch_key_set().excluded_;
  return excluded.has(c10::DispatchKey::AutogradOther) && !excluded.has(c10::DispatchKey::ADInplaceOrView);
}

// Returns true if the operator overwrites the tensor's whole storage without reading it.
bool is_overwritten(const c10::OperatorHandle& op, const at::Tensor& tensor) {
  static constexpr std::string_view kNames[] = {"aten::zero_",    "aten::fill_",   "aten::copy_",       "aten::normal_",
                                                "aten::uniform_", "aten::random_", "aten::exponential_"};
  return std::ranges::find(kNames, op.operator_name().name) != std::end(kNames) && tensor.storage_offset() == 0 &&
         tensor.is_non_overlapping_and_dense() && tensor.nbytes() == tensor.storage().nbytes();
}

class PutOff {
 public:
  PutOff(const c10::OperatorHandle& op, Stack& stack)
      : op_(op),
        stack_(stack),
        arguments_(std::span(stack).last(op.schema().arguments().size())),
        operands_(tensors_in(arguments_)),
        traits_(operator_traits(op)) {}

  void run() {
    const bool is_deferred = std::ranges::any_of(operands_, [](const Found& f) { return f.tensor.is_meta(); });
    const auto device = argument_of(op_, "device");
    const bool makes = device && (operands_.empty() || traits_.kind == OperatorKind::kFactory);
    if ((!is_deferred && !makes) || (makes && operands_.empty() && is_literal())) return op_.callBoxed(&stack_);
    asked_ = device && !arguments_[*device].isNone() ? std::optional(arguments_[*device].toDevice()) : std::nullopt;
    if (asked_ && asked_->is_meta()) return op_.callBoxed(&stack_);
    if (kind_of_thread == Kind::kForget) return call_on_meta(device);
    const auto is_written_memory = [&](const Found& f) { return !f.tensor.is_meta() && traits_.writes(f.value); };
    if (std::ranges::any_of(operands_, is_written_memory) || asks_for_values()) return call_now();
    auto call = make_call();
    const auto before = stack_;
    try {
      call_on_meta(device);
    } catch (const c10::NotImplementedError&) {
      stack_ = before;
      arguments_ = std::span(stack_).last(op_.schema().arguments().size());
      return call_now();
    }
    fix_dtype(*call);
    leave_device();
    if (traits_.random) draw(*call);
    note(std::move(call));
  }

 private:
  std::span<c10::IValue> results() { return std::span(stack_).last(op_.schema().returns().size()); }

  // Returns the device on which the results' values will be.
  c10::Device device() const {
    if (asked_) return *asked_;
    for (const auto& operand : operands_) return form_of_values(operand.tensor).device;
    return at::kCPU;
  }

  // Returns true if the operator returns a number instead of a tensor, or a tensor whose sizes depend on values.
  bool asks_for_values() const {
    if (op_.hasTag(at::Tag::dynamic_output_shape)) return true;
    if (traits_.kind == OperatorKind::kMetadata || traits_.kind == OperatorKind::kReplace) return false;
    const auto& returns = op_.schema().returns();
    return !returns.empty() && std::ranges::all_of(returns, [](const c10::Argument& result) {
      const auto kind = result.type()->kind();
      return kind == c10::TypeKind::NumberType || kind == c10::TypeKind::BoolType || kind == c10::TypeKind::FloatType ||
             kind == c10::TypeKind::IntType;
    });
  }

  void call_on_meta(std::optional<size_t> device) {
    own_lists(arguments_);
    for (const auto& [tensor, argument, element] : operands_)
      if (!tensor.is_meta() && tensor.dim() > 0)  // a tensor without dims may be on any device
        put(arguments_[argument], element,
            at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta)));
    if (device) arguments_[*device] = c10::Device(at::kMeta);
    if (const auto pinned = argument_of(op_, "pin_memory")) arguments_[*pinned] = c10::IValue();
    op_.callBoxed(&stack_);
  }

  std::shared_ptr<DeferredCall> make_call() {
    auto call = std::make_shared<DeferredCall>(DeferredCall{op_, {arguments_.begin(), arguments_.end()}, {}});
    own_lists(call->arguments);
    for (const auto& [tensor, argument, element] : operands_) {
      const auto value = deferred_value_of(tensor);
      if (value) {
        const bool is_new = traits_.writes(argument) && is_overwritten(op_, tensor);
        call->operands.push_back(
            {argument, element, geometry_of(tensor),
             is_new ? std::make_shared<DeferredValue>(DeferredValue{value->device, value->bytes}) : value});
        // The call must not own the tensor: the tensor's storage may get a value that owns the call.
        put(call->arguments[argument], element, at::Tensor());
      } else if (!tensor.is_meta()) {
        // The call keeps a copy, because the tensor may be written before the call is carried out.
        put(call->arguments[argument], element, tensor.detach().clone());
      }
    }
    return call;
  }

  // Fixes the dtype of a factory call to the present default dtype, which may change before the call is carried out.
  void fix_dtype(DeferredCall& call) {
    const auto dtype = argument_of(op_, "dtype");
    if (dtype && operands_.empty() && call.arguments[*dtype].isNone() && results()[0].isTensor())
      call.arguments[*dtype] = static_cast<int64_t>(results()[0].toTensor().scalar_type());
  }

  // Gives results that move to another device a storage of their own. On the meta device they share the operand's.
  void leave_device() {
    if (!asked_) return;
    for (auto& result : results())
      for (const auto& operand : operands_)
        if (result.isTensor() && share_storage(result.toTensor(), operand.tensor) &&
            form_of_values(operand.tensor).device != *asked_) {
          const auto& tensor = result.toTensor();
          result = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options());
        }
  }

  // Advances the generator as the call would, and records its state before the call.
  void draw(DeferredCall& call) {
    auto generator = at::globalContext().defaultGenerator(device());
    for (const auto& argument : call.arguments)
      if (argument.isGenerator()) generator = argument.toGenerator();
    auto state = generator.get_state();
    runtime::draw(call);
    size_t bytes = 0;
    for (const auto& found : tensors_in(results())) bytes += found.tensor.nbytes();
    constexpr size_t kWorthReturning = size_t{1} << 20;
    if (bytes >= kWorthReturning) memory::return_free_pages();
    call.generator = std::move(generator);
    call.generator_state = std::move(state);
  }

  // Sets the deferred values of the storages that the call writes or makes.
  void note(std::shared_ptr<const DeferredCall> call) {
    int depth = 0;
    for (const auto& operand : call->operands) depth = std::max(depth, operand.value->depth);
    const auto leave = [&](const at::Tensor& tensor, const c10::Device& device, size_t place) {
      DeferredValuePtr value =
          std::make_shared<DeferredValue>(DeferredValue{device, tensor.storage().nbytes(), call, place, {}, depth + 1});
      defer(tensor, depth < kLongestChain ? std::move(value) : computed(value));
    };
    size_t place = 0;
    for (const auto& [tensor, argument, element] : operands_) {
      const auto value = deferred_value_of(tensor);
      if (!value) continue;
      if (traits_.writes(argument)) leave(tensor, value->device, place);
      ++place;
    }
    for (const auto& [tensor, result, element] : tensors_in(results())) {
      const bool is_new = std::ranges::none_of(
          operands_, [&, &made = tensor](const Found& operand) { return share_storage(operand.tensor, made); });
      if (is_new && tensor.is_meta() && tensor.has_storage()) leave(tensor, device(), place);
      ++place;
    }
  }

  // Carries the call out now, because its result is needed at once or the operator does not work on the meta device.
  void call_now() {
    own_lists(arguments_);
    std::vector<std::pair<Found, at::Tensor>> in_memory;
    for (const auto& operand : operands_) {
      if (!deferred_value_of(operand.tensor)) continue;
      in_memory.emplace_back(operand, compute(operand.tensor));
      put(arguments_[operand.value], operand.element, in_memory.back().second);
    }
    op_.callBoxed(&stack_);
    for (const auto& [operand, tensor] : in_memory)
      if (traits_.writes(operand.value)) hold(operand.tensor, tensor);
    for (auto& result : results())
      for (const auto& [tensor, value, element] : tensors_in(std::span(&result, 1))) {
        const auto same = std::ranges::find_if(
            in_memory, [&, &made = tensor](const auto& pair) { return pair.second.is_same(made); });
        put(result, element, same != in_memory.end() ? same->first.tensor : without_memory(tensor));
      }
  }

  static void hold(const at::Tensor& on_meta, const at::Tensor& tensor) {
    defer(on_meta,
          std::make_shared<DeferredValue>(DeferredValue{
              .device = tensor.device(), .bytes = tensor.storage().nbytes(), .there = bytes_of_storage(tensor)}));
  }
  static at::Tensor without_memory(const at::Tensor& tensor) {
    const auto dense = tensor.detach().clone();
    auto on_meta = at::empty_strided(dense.sizes(), dense.strides(), dense.options().device(at::kMeta));
    hold(on_meta, dense);
    return on_meta;
  }

  const c10::OperatorHandle& op_;
  Stack& stack_;
  std::span<c10::IValue> arguments_;
  std::vector<Found> operands_;
  OperatorTraits traits_;
  std::optional<c10::Device> asked_;
};

void put_off(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(kDeferredKey);
  PutOff(op, *stack).run();
}

void install() {
  // Like the interceptor's torch::Library, this one is never destroyed.
  [[maybe_unused]] static const auto* library = [] {
    auto* fallback = new torch::Library(torch::Library::IMPL, "_", kDeferredKey, __FILE__, __LINE__);
    fallback->fallback(torch::CppFunction::makeFromBoxedFunction<&put_off>());
    return fallback;
  }();
}

}  // namespace

DeferredRecording::DeferredRecording(Kind kind)
    : former_(std::exchange(kind_of_thread, kind)), guard_((install(), kDeferredKey)) {}

DeferredRecording::~DeferredRecording() { kind_of_thread = former_; }

}  // namespace fsdp::runtime
