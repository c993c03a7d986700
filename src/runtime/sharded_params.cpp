#include "runtime/sharded_params.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "runtime/compat.h"
#include "runtime/registry.h"

namespace fsdp::runtime {
namespace {

constexpr int64_t kCpuAlignmentBytes = 64;
constexpr int64_t kCudaAlignmentBytes = 256;

// What one flat buffer holds. Frozen parameters have their own, so that reductions, gradients and optimizer state are
// those of what trains, shared evenly.
struct BufferKind {
  c10::ScalarType dtype;
  c10::Device device;
  bool is_frozen;

  auto key() const { return std::tuple(dtype, device.type(), device.index(), is_frozen); }
  bool operator<(const BufferKind& other) const { return key() < other.key(); }
};

std::string no_memory_message(const GroupIdentity& group, const ParamSlot& slot) {
  return group.where("raw access") + "parameter '" + slot.name() +
         "' is sharded and its whole value is not in memory. Inside a forward scope let an operator read it, or bring "
         "it with Group::unshard() or fsdp::summon_full_params; to save a model, save outside the scope";
}

// For tensors that share a parameter's memory from before, and would never see another value of it.
std::string former_memory_message(const GroupIdentity& group, const ParamSlot& slot) {
  return group.where("raw access") + "the tensor was on the memory of parameter '" + slot.name() +
         "' (a view, a detach(), a data() or a set_data() from before fsdp::fully_shard), which has its values "
         "elsewhere "
         "now. Take it from the parameter when it is needed, or clone() it before fsdp::fully_shard; tie weights by "
         "assigning the tensor itself: a->weight = b->weight";
}

}  // namespace

ShardedParams::ShardedParams(const GroupIdentity& group, const std::vector<NamedParameter>& parameters)
    : group_(group), places_(parameters.size()) {
  const auto& placement = group.placement;
  std::map<BufferKind, std::vector<size_t>> by_kind;
  for (size_t i : c10::irange(parameters.size())) {
    const auto& tensor = parameters[i].tensor;
    by_kind[{tensor.scalar_type(), tensor.device(), !tensor.requires_grad()}].push_back(i);
  }
  for (const auto& [kind, members] : by_kind) {
    auto [dtype, device, is_frozen] = kind;
    std::vector<layout::Item> items;
    for (size_t i : members) {
      const auto& tensor = parameters[i].tensor;
      places_[i] = {flats_.size(), items.size()};
      items.push_back({tensor.numel(), tensor.dim() == 0 ? 1 : tensor.size(0)});
    }
    int64_t alignment = device.is_cpu() ? kCpuAlignmentBytes : kCudaAlignmentBytes;
    auto layout = layout::plan_rows(items, placement.world_size(),
                                    std::max<int64_t>(1, alignment / static_cast<int64_t>(c10::elementSize(dtype))));
    flats_.emplace_back(dtype, device, std::move(layout), placement.rank(), group.rank_state->shared_account());
  }
}

ShardedParams::~ShardedParams() {
  for (auto& slot : slots_) {
    registry().remove(slot.rows_storage.impl());
    registry().remove(slot.whole_storage.impl());
    if (auto* old = slot.gradient_storage._unsafe_get_target()) registry().remove(old);
  }
}

void ShardedParams::take_rows(const std::vector<NamedParameter>& parameters, const std::vector<at::Tensor>& values) {
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard own_operators(kShardedKey);
  slots_.reserve(parameters.size());
  for (size_t i : c10::irange(parameters.size())) {
    const auto& flat = flats_[places_[i].flat];
    auto& slot = slots_.emplace_back(parameters[i], flat.layout().rows_of(places_[i].item, group_.placement.rank()));
    slot.rows_storage.attach(flat.shard_buffer(), flat.shard_byte_offset() + byte_offset_in_slice(i));
    if (slot.rows_numel() > 0) slot.rows_tensor.copy_(slot.rows_of(values[i]));
  }
}

// 0 for a slot without rows.
size_t ShardedParams::byte_offset_in_slice(size_t index) {
  const auto& slot = slots_[index];
  const auto& flat = flats_[places_[index].flat];
  if (slot.rows_numel() == 0) return 0;
  const int64_t begin = flat.layout().boundaries[group_.placement.rank()];
  const int64_t first = flat.layout().offsets[places_[index].item] + slot.rows().first * slot.row_numel();
  return static_cast<size_t>(first - begin) * flat.element_size();
}

void ShardedParams::install(const std::shared_ptr<ParamGroup>& owner) {
  owner_ = owner;
  for (size_t i : c10::irange(slots_.size())) {
    auto& slot = slots_[i];
    const auto tensor = slot.tensor();
    slot.no_memory_error = no_memory_message(group_, slot);
    slot.whole_storage.detach(slot.no_memory_error);
    registry().add(slot.rows_storage.impl(), owner_, i, PartKind::kRows);
    registry().add(slot.whole_storage.impl(), owner_, i, PartKind::kWhole);
    const auto former = tensor.storage();
    const auto range = memory::range_of(tensor);
    slot.show_rows();
    if (former.use_count() > 1) leave_to_others(former, range, slot);
  }
}

// Memory that others have too. All of it was the parameter's, or there is more of it, which is used on.
void ShardedParams::leave_to_others(const c10::Storage& former, const memory::MemoryRange& range,
                                    const ParamSlot& slot) {
  auto error = former_memory_message(group_, slot);
  if (former.nbytes() == static_cast<size_t>(range.end - range.begin))
    memory::end_storage(former, error);
  else
    registry().add_former({former.getWeakStorageImpl(), owner_, range, std::move(error)});
}

void ShardedParams::rename(size_t index, std::string name) {
  slots_[index].rename(std::move(name));
  slots_[index].no_memory_error = no_memory_message(group_, slots_[index]);
}

bool ShardedParams::is_on_cpu() const {
  return std::ranges::all_of(flats_, [](const FlatParams& flat) { return flat.device().is_cpu(); });
}

bool ShardedParams::shares_memory() const { return std::ranges::any_of(flats_, &FlatParams::shares_memory); }

bool ShardedParams::every_rank_has_rows() const {
  for (int rank : c10::irange(group_.placement.world_size()))
    if (std::ranges::none_of(flats_, [&](const FlatParams& flat) { return flat.layout().owned_numel(rank) > 0; }))
      return false;
  return true;
}

void ShardedParams::attach_whole() {
  for (size_t i : c10::irange(slots_.size())) {
    const auto& flat = flats_[places_[i].flat];
    auto offset = static_cast<size_t>(flat.layout().offsets[places_[i].item]) * flat.element_size();
    slots_[i].whole_storage.attach(flat.whole_buffer(), offset);
  }
}

void ShardedParams::detach_whole() {
  for (auto& slot : slots_) slot.whole_storage.detach(slot.no_memory_error);
}

at::Tensor ShardedParams::rows_of_slice(size_t index, const std::shared_ptr<memory::FlatBuffer>& slice) {
  const auto& slot = slots_[index];
  const auto& flat = flats_[places_[index].flat];
  memory::PartStorage storage(flat.device(), static_cast<size_t>(slot.rows_numel()) * flat.element_size());
  storage.attach(slice, byte_offset_in_slice(index));
  return slot.rows_on(storage);
}

void ShardedParams::register_gradient(size_t index, const at::Tensor& gradient) {
  auto& slot = slots_[index];
  if (auto* old = slot.gradient_storage._unsafe_get_target()) registry().remove(old);
  auto* storage = gradient.storage().unsafeGetStorageImpl();
  slot.gradient_storage =
      c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
  registry().add(storage, owner_, index, PartKind::kGradient);
}

}  // namespace fsdp::runtime
