#include "runtime/registry.h"

namespace fsdp::runtime {

void Registry::add(const c10::StorageImpl* storage, const std::weak_ptr<ParamGroup>& group, size_t slot,
                   PartKind kind) {
  const MutexLock lock(mutex_);
  storages_[storage] = {group, slot, kind};
}

void Registry::remove(const c10::StorageImpl* storage) {
  const MutexLock lock(mutex_);
  storages_.erase(storage);
}

std::optional<Part> Registry::find(const at::Tensor& tensor) const {
  if (!tensor.has_storage()) return std::nullopt;
  const MutexLock lock(mutex_);
  auto it = storages_.find(tensor.storage().unsafeGetStorageImpl());
  if (it == storages_.end()) return std::nullopt;
  auto group = it->second.group.lock();
  if (!group) return std::nullopt;
  return Part{std::move(group), it->second.slot, it->second.kind};
}

void Registry::add_module(const void* module, const std::weak_ptr<const void>& owner,
                          const std::shared_ptr<ParamGroup>& group) {
  const MutexLock lock(mutex_);
  std::erase_if(modules_, [](const auto& entry) { return entry.second.is_gone(); });
  modules_[module] = {group, owner, !owner.expired()};
}

Registry::ModuleGroup Registry::find_module(const void* module, const std::weak_ptr<const void>& owner) const {
  const auto are_same = [](const auto& a, const auto& b) { return !a.owner_before(b) && !b.owner_before(a); };
  const MutexLock lock(mutex_);
  const auto it = modules_.find(module);
  if (it == modules_.end() || it->second.is_gone()) return {};
  const bool is_same = are_same(owner, it->second.owner);
  const bool has_none = are_same(owner, std::weak_ptr<const void>());
  return {is_same || !has_none ? it->second.group.lock() : nullptr, is_same && !has_none};
}

void Registry::ignore(const at::Tensor& parameter) {
  const MutexLock lock(mutex_);
  std::erase_if(ignored_, [](const auto& known) { return known.second.expired(); });
  ignored_.emplace(parameter.unsafeGetTensorImpl(), parameter.getIntrusivePtr());
}

bool Registry::is_ignored(const at::Tensor& parameter) const {
  const MutexLock lock(mutex_);
  return ignored_.contains(parameter.unsafeGetTensorImpl());
}

Registry& registry() {
  // The registry is never destroyed, because operators on tensors that outlive main() still use it.
  static auto* instance = new Registry;
  return *instance;
}

}  // namespace fsdp::runtime
