#include "runtime/deferred_value.h"

#include <ATen/ops/empty.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "comm/core/check.h"
#include "runtime/compat.h"
#include "runtime/operator_traits.h"

namespace fsdp::runtime {
namespace {

// A tensor through which an operator wrote to the storage, and the tensor's version after that write.
struct LeftThrough {
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
  uint32_t version;
};

// The data that a storage on the meta device holds in place of memory.
struct Kept {
  DeferredValuePtr value;
  std::vector<LeftThrough> left_through = {};
};
void drop_kept(void* context) { delete static_cast<Kept*>(context); }

Kept* kept_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_meta() || !tensor.has_storage()) return nullptr;
  auto& data = tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  return data.cast_context<Kept>(&drop_kept);
}

at::Tensor lie_on(const at::Tensor& memory, const DeferredGeometry& geometry) {
  return at::empty({0}, memory.options().dtype(geometry.dtype))
      .set_(memory.storage(), geometry.offset, geometry.sizes, geometry.strides);
}

class Replay {
 public:
  // Returns the bytes of the value's storage. The caller must not write to them.
  at::Tensor value(const DeferredValue& wanted) {
    if (wanted.there.defined()) return wanted.there;
    require(!wanted.is_spread,
            "fsdp::initialize: the function needs a parameter's old value while it runs, e.g. for item() or because it "
            "writes the parameter in hundreds of parts. The ranks gather old values only after the function has "
            "returned. Compute such numbers before initialize, e.g. from fsdp::full_tensor, or write fewer parts");
    if (!wanted.call)
      return at::empty({static_cast<int64_t>(wanted.bytes)}, at::device(wanted.device).dtype(at::kByte));
    const std::pair key(wanted.call.get(), wanted.place);
    if (!known_.contains(key)) run(*wanted.call);
    return known_.at(key);
  }

  void run(const DeferredCall& call) {
    auto stack = call.arguments;
    own_lists(stack);
    std::vector<at::Tensor> operands;
    for (const auto& operand : call.operands) operands.push_back(taken(call, operand, operands));
    for (size_t i = 0; i < call.operands.size(); ++i) {
      const auto& operand = call.operands[i];
      operands[i] = lie_on(operands[i], operand.geometry);
      put(stack[operand.argument], operand.element, operands[i]);
    }
    call_as_then(call, stack);
    size_t place = 0;
    for (const auto& tensor : operands) known_[{&call, place++}] = bytes_of_storage(tensor);
    visit_tensors(
        stack, [&](const at::Tensor& tensor, size_t, size_t) { known_[{&call, place++}] = bytes_of_storage(tensor); });
  }

 private:
  // Returns the contents of the operand's storage before the call. If the call writes to the storage and other calls
  // read it too, the function returns a copy.
  at::Tensor taken(const DeferredCall& call, const DeferredCall::Operand& operand,
                   const std::vector<at::Tensor>& earlier) {
    for (size_t i = 0; i < earlier.size(); ++i)
      if (call.operands[i].value == operand.value) return earlier[i];  // two tensors on one storage
    const auto traits = operator_traits(call.op);
    const bool is_written = std::ranges::any_of(call.operands, [&](const auto& other) {
      return other.value == operand.value && traits.writes(other.argument);
    });
    auto memory = value(*operand.value);
    const bool has_values = operand.value->call || operand.value->there.defined();
    if (!is_written || !has_values) return memory;
    const std::pair key(operand.value->call.get(), operand.value->place);
    if (operand.value->there.defined() || operand.value.use_count() > 1) return memory.clone();
    known_.erase(key);
    return memory;
  }

  static void call_as_then(const DeferredCall& call, std::vector<c10::IValue>& stack) {
    if (!call.generator.defined()) return call.op.callBoxed(&stack);
    static std::mutex one_at_a_time;
    const std::lock_guard lock(one_at_a_time);
    auto generator = call.generator;
    const auto now = generator.get_state();
    const auto restore = c10::make_scope_exit([&] { generator.set_state(now); });
    generator.set_state(call.generator_state);
    call.op.callBoxed(&stack);
  }

  std::map<std::pair<const DeferredCall*, size_t>, at::Tensor> known_;
};

// While this guard lives, operators run as usual: neither autograd nor fsdp records or intercepts them.
struct CarryOut {
  OwnOperators own_operators;
  c10::impl::ExcludeDispatchKeyGuard not_deferred{kDeferredKey};
};

}  // namespace

DeferredValuePtr deferred_value_of(const at::Tensor& tensor) {
  const auto* kept = kept_of(tensor);
  return kept == nullptr ? nullptr : kept->value;
}

// A write through one tensor also raises the versions of other tensors that share its version counter. So the versions
// of all known tensors are updated here.
void defer(const at::Tensor& tensor, DeferredValuePtr value) {
  auto kept = std::make_unique<Kept>(Kept{std::move(value)});
  if (auto* before = kept_of(tensor)) kept->left_through = std::move(before->left_through);
  bool is_known = false;
  std::erase_if(kept->left_through, [&](LeftThrough& left) {
    const auto alive = left.tensor.lock();
    if (alive) left.version = alive->version_counter().current_version();
    is_known = is_known || alive.get() == tensor.unsafeGetTensorImpl();
    return !alive;
  });
  if (!is_known && !tensor.is_inference())
    kept->left_through.push_back(
        {c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(tensor.getIntrusivePtr()),
         static_cast<uint32_t>(tensor._version())});
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap({nullptr, kept.release(), &drop_kept, c10::Device(at::kMeta)});
}

bool was_written_since(const at::Tensor& tensor) {
  const auto* kept = kept_of(tensor);
  return kept != nullptr && std::ranges::any_of(kept->left_through, [&](const LeftThrough& left) {
           return left.tensor._unsafe_get_target() == tensor.unsafeGetTensorImpl() && left.version != tensor._version();
         });
}

at::Tensor bytes_of_storage(const at::Tensor& tensor) {
  const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
  return at::empty({0}, at::device(tensor.device()).dtype(at::kByte)).set_(tensor.storage(), 0, {bytes}, {1});
}

DeferredGeometry geometry_of(const at::Tensor& tensor) {
  return {tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset(), tensor.scalar_type()};
}

memory::Form form_of_values(const at::Tensor& tensor) {
  const auto value = deferred_value_of(tensor);
  return {tensor.scalar_type(), value ? value->device : tensor.device()};
}

void draw(const DeferredCall& call) {
  const CarryOut guards;
  Replay().run(call);
}

at::Tensor compute(const at::Tensor& tensor) {
  const CarryOut guards;
  return lie_on(Replay().value(*deferred_value_of(tensor)), geometry_of(tensor));
}

DeferredValuePtr computed(const DeferredValuePtr& value) {
  const CarryOut guards;
  return std::make_shared<DeferredValue>(
      DeferredValue{.device = value->device, .bytes = value->bytes, .there = Replay().value(*value)});
}

}  // namespace fsdp::runtime
