#include "runtime/registry.h"

namespace fsdp::runtime {

void Registry::add(const c10::StorageImpl* storage, const std::shared_ptr<ParamGroup>& group, size_t slot,
                   PartKind kind) {
  std::lock_guard lock(mutex_);
  storages_[storage] = {group, slot, kind};
}

void Registry::remove(const c10::StorageImpl* storage) {
  std::lock_guard lock(mutex_);
  storages_.erase(storage);
}

std::optional<Part> Registry::find(const c10::StorageImpl* storage) const {
  std::lock_guard lock(mutex_);
  auto it = storages_.find(storage);
  if (it == storages_.end()) return std::nullopt;
  auto group = it->second.group.lock();
  if (!group) return std::nullopt;
  return Part{std::move(group), it->second.slot, it->second.kind};
}

void Registry::add_module(const void* module, const std::weak_ptr<const void>& owner,
                          const std::shared_ptr<ParamGroup>& group) {
  std::lock_guard lock(mutex_);
  std::erase_if(modules_, [](const auto& entry) { return entry.second.is_gone(); });
  modules_[module] = {group, owner, !owner.expired()};
}

std::shared_ptr<ParamGroup> Registry::find_module(const void* module) const {
  std::lock_guard lock(mutex_);
  auto it = modules_.find(module);
  return it == modules_.end() || it->second.is_gone() ? nullptr : it->second.group.lock();
}

Registry& registry() {
  // Never destroyed: tensors that outlive main() still look themselves up.
  static auto* instance = new Registry;
  return *instance;
}

}  // namespace fsdp::runtime
