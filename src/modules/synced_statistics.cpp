#include "modules/synced_statistics.h"

#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/batch_norm.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/compat.h"

namespace fsdp::modules {
namespace {

using runtime::kSyncedKey;

/// The hook on a running mean, which only stores its members. Autograd never calls it, because a running mean has no
/// gradient.
struct SyncedOver : torch::autograd::FunctionPreHook {
  SyncedOver(std::weak_ptr<torch::nn::Module> of, SyncGroup at) : module(std::move(of)), group(std::move(at)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override { return grads; }

  /// Returns true if the module is in training mode, or if no shared pointer owns it, so that its mode is unknown.
  bool trains() const {
    const auto owner = module.lock();
    return !owner || owner->is_training();
  }

  std::weak_ptr<torch::nn::Module> module;
  SyncGroup group;
};

std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>& hooks_of(const at::Tensor& tensor) {
  return torch::autograd::impl::materialize_autograd_meta(tensor)->hooks_;
}

SyncedOver* synced_over(const at::Tensor& tensor) {
  for (const auto& hook : hooks_of(tensor))
    if (auto* found = dynamic_cast<SyncedOver*>(hook.get())) return found;
  return nullptr;
}

at::Tensor batch_norm(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& running_mean,
                      const std::optional<at::Tensor>& running_var, bool training, double momentum, double eps,
                      bool cudnn_enabled) {
  const c10::impl::ExcludeDispatchKeyGuard below(kSyncedKey);
  const auto* synced = running_mean && running_mean->defined() ? synced_over(*running_mean) : nullptr;
  const bool is_tracked = running_var && running_var->defined();
  const auto mean = synced == nullptr || is_tracked ? running_mean : std::optional<at::Tensor>();
  if (synced == nullptr || !training || !synced->trains())
    return at::batch_norm(input, weight, bias, mean, running_var, training, momentum, eps, cudnn_enabled);
  const auto given = [](const std::optional<at::Tensor>& tensor) { return tensor.value_or(at::Tensor()); };
  const SyncGroup group = synced->group;
  return synced_batch_norm({input, given(weight), given(bias), given(mean), given(running_var), momentum, eps}, group);
}

// Adds the key to a copy of a running mean. Module::to copies each buffer and gives the buffer the copy's keys. Without
// this kernel, a module that was moved would therefore no longer normalise over the ranks.
at::Tensor to_copy(c10::DispatchKeySet keys, const at::Tensor& self, std::optional<at::ScalarType> dtype,
                   std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool> pin_memory,
                   bool non_blocking, std::optional<at::MemoryFormat> memory_format) {
  const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kSyncedKey);
  auto copy =
      at::_ops::_to_copy::redispatch(below, self, dtype, layout, device, pin_memory, non_blocking, memory_format);
  runtime::add_key(*copy.unsafeGetTensorImpl(), kSyncedKey);
  return copy;
}

void install() {
  // The registrations are never removed, because operators may still be called on tensors that outlive main().
  static const auto libraries = [] {
    auto* others = new torch::Library(torch::Library::IMPL, "_", kSyncedKey, __FILE__, __LINE__);
    others->fallback(torch::CppFunction::makeFallthrough());
    auto* ours = new torch::Library(torch::Library::IMPL, "aten", kSyncedKey, __FILE__, __LINE__);
    ours->impl("batch_norm", TORCH_FN(batch_norm));
    ours->impl("_to_copy", TORCH_FN(to_copy));
    return std::pair(others, ours);
  }();
  static_cast<void>(libraries);
}

}  // namespace

void sync_statistics(const at::Tensor& running_mean, std::weak_ptr<torch::nn::Module> module, SyncGroup group) {
  install();
  runtime::add_key(*running_mean.unsafeGetTensorImpl(), kSyncedKey);
  auto synced = std::make_unique<SyncedOver>(std::move(module), std::move(group));
  auto& hooks = hooks_of(running_mean);
  std::erase_if(hooks, [](const auto& hook) { return dynamic_cast<const SyncedOver*>(hook.get()) != nullptr; });
  hooks.push_back(std::move(synced));
}

}  // namespace fsdp::modules
