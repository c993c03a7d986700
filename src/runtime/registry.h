#pragma once
/// \file
/// The registry of the groups to which storages and modules belong. It is the runtime's only process-wide state.

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/flat_hash_map.h>

#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "comm/core/mutex.h"
#include "runtime/access_rules.h"

namespace fsdp::runtime {

class ParamGroup;

/// A parameter of a group, and one of its storages.
struct Part {
  std::shared_ptr<ParamGroup> group;
  size_t slot = 0;
  PartKind kind = PartKind::kRows;
};

/// The mark of tensors that operators compute from a slot's rows; see Note [Results of rows] in runtime/row_operands.h.
struct RowMark final : c10::BackendMeta {
  RowMark(std::weak_ptr<ParamGroup> whose, size_t which) : group(std::move(whose)), slot(which) {}

  const std::weak_ptr<ParamGroup> group;
  const size_t slot;
};

/// Finds groups by storages and modules. It refers to groups weakly: a group lives as long as its parameters and
/// graphs. Thread safety: any thread may call any method at any time.
class Registry {
 public:
  void add(const c10::StorageImpl* storage, const std::weak_ptr<ParamGroup>& group, size_t slot, PartKind kind);
  void remove(const c10::StorageImpl* storage);
  /// Returns the part to which the tensor's storage belongs; nothing if there is none.
  std::optional<Part> find(const at::Tensor& tensor) const;

  /// Registers the group of a module. `owner` is the module's pointer to itself, which may have expired; empty for
  /// TorchScript. It distinguishes the module from a later one at the same address.
  void add_module(const void* module, const std::weak_ptr<const void>& owner, const std::shared_ptr<ParamGroup>& group);
  struct ModuleGroup {
    std::shared_ptr<ParamGroup> group;  ///< null if there is none
    /// False if the group may belong to an earlier module at the same address: the module is TorchScript's, or it got
    /// an owner after the group was made.
    bool is_certain = false;
  };
  /// Returns the group of the module at this address. `owner` is the module's current owner.
  ModuleGroup find_module(const void* module, const std::weak_ptr<const void>& owner) const;

  /// Notes that the parameter is in FullyShardOptions::ignored_params, so that each rank has its own copy.
  void ignore(const at::Tensor& parameter);
  bool is_ignored(const at::Tensor& parameter) const;

 private:
  struct Entry {
    std::weak_ptr<ParamGroup> group;
    size_t slot;
    PartKind kind;
  };
  struct ModuleEntry {
    std::weak_ptr<ParamGroup> group;
    std::weak_ptr<const void> owner;
    bool has_owner;
    bool is_gone() const { return group.expired() || (has_owner && owner.expired()); }
  };
  mutable Mutex mutex_;  // not a shared mutex, which would cost more than it saves in such short look-ups
  ska::flat_hash_map<const c10::StorageImpl*, Entry> storages_ FSDP_GUARDED_BY(mutex_);
  std::unordered_map<const void*, ModuleEntry> modules_ FSDP_GUARDED_BY(mutex_);
  /// The key is the address, which no other tensor gets while the weak pointer exists.
  std::unordered_map<const c10::TensorImpl*, c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>>
      ignored_ FSDP_GUARDED_BY(mutex_);
};

Registry& registry();

}  // namespace fsdp::runtime
