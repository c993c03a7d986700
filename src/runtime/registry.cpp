#include "runtime/registry.h"

#include <algorithm>
#include <utility>

#include "runtime/rank_state.h"

namespace fsdp::runtime {
namespace {

constexpr auto kScopesOfAModel = 4;

bool are_same(const std::weak_ptr<const void>& one, const std::weak_ptr<const void>& other) {
  return !one.owner_before(other) && !other.owner_before(one);
}

}  // namespace

void Registry::add(const c10::StorageImpl* storage, const std::weak_ptr<ParamGroup>& group, size_t slot,
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

void Registry::add_former(FormerMemory memory) {
  std::lock_guard lock(mutex_);
  std::erase_if(former_, [](const auto& known) { return known.storage.expired() || known.group.expired(); });
  former_.push_back(std::move(memory));
}

std::string Registry::former_error(const at::Tensor& tensor) const {
  const auto range = memory::range_of(tensor);
  std::lock_guard lock(mutex_);
  for (const auto& known : former_) {
    const bool is_on_it = known.storage._unsafe_get_target() == tensor.storage().unsafeGetStorageImpl();
    if (is_on_it && known.range.overlaps(range) && !known.group.expired()) return known.error;
  }
  return {};
}

void Registry::add_module(const void* module, const std::weak_ptr<const void>& owner,
                          const std::shared_ptr<ParamGroup>& group) {
  std::lock_guard lock(mutex_);
  if (modules_.size() >= tidy_at_) {
    std::erase_if(modules_, [](const auto& entry) { return entry.second.is_gone(); });
    tidy_at_ = 2 * modules_.size() + 64;
  }
  modules_[module] = {group, owner, !owner.expired()};
}

Registry::ModuleGroup Registry::find_module(const void* module, const std::weak_ptr<const void>& owner) const {
  std::lock_guard lock(mutex_);
  auto it = modules_.find(module);
  if (it == modules_.end() || it->second.is_gone()) return {};
  const bool is_same = are_same(owner, it->second.owner), has_none = are_same(owner, {});
  return {is_same || !has_none ? it->second.group.lock() : nullptr, is_same && !has_none};
}

void Registry::add_scope(std::shared_ptr<const ScopeRecord> scope) {
  std::lock_guard lock(mutex_);
  std::erase_if(scopes_, [](const auto& known) { return known->outermost.expired(); });
  const auto is_of_the_same = [&](const auto& known) { return are_same(known->outermost, scope->outermost); };
  if (std::ranges::count_if(scopes_, is_of_the_same) == kScopesOfAModel)
    scopes_.erase(std::ranges::find_if(scopes_, is_of_the_same));
  scopes_.push_back(std::move(scope));
}

std::vector<std::shared_ptr<const ScopeRecord>> Registry::scopes() const {
  std::lock_guard lock(mutex_);
  return scopes_;
}

Registry& registry() {
  // Never destroyed: tensors that outlive main() still look themselves up.
  static auto* instance = new Registry;
  return *instance;
}

}  // namespace fsdp::runtime
