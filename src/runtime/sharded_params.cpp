#include "runtime/sharded_params.h"

#include <c10/util/irange.h>

#include <utility>

#include "runtime/compat.h"
#include "runtime/deferred_value.h"
#include "runtime/registry.h"

namespace fsdp::runtime {
namespace {

constexpr int64_t kCpuAlignmentBytes = 64;
constexpr int64_t kCudaAlignmentBytes = 256;
// Largest size of the last bucket, whose gradients arrive first.
constexpr int64_t kLastBucketBytes = int64_t{1} << 20;

FlatForms forms_of(const GroupMember& parameter, RowMemory row_memory) {
  const auto form = parameter.form ? *parameter.form : form_of_values(parameter.tensor);
  FlatForms forms{form, form, form, !parameter.tensor.requires_grad()};
  if (row_memory != RowMemory::kBesideWhole && !form.device.is_meta()) forms.rows.device = c10::kCPU;
  if (const auto& precision = parameter.precision) {
    forms.whole.dtype = precision->whole;
    forms.reduced.dtype = precision->reduced;
  }
  return forms;
}

// Returns the alignment of parameters, in elements.
int64_t alignment_of(const memory::Form& form) {
  const auto bytes = form.device.is_cpu() ? kCpuAlignmentBytes : kCudaAlignmentBytes;
  return std::max<int64_t>(1, bytes / static_cast<int64_t>(form.bytes(1)));
}

// Returns the smallest number of elements whose size is a multiple of 16 bytes in each of the forms.
int64_t slice_multiple(const FlatForms& forms) {
  constexpr int64_t kSliceBytes = 16;
  const auto smallest = std::min({forms.rows.bytes(1), forms.whole.bytes(1), forms.reduced.bytes(1)});
  return std::max<int64_t>(1, kSliceBytes / static_cast<int64_t>(smallest));
}

// Returns the error of raw access to a tensor that shared a parameter's old memory: the tensor would never see a new
// value of the parameter.
std::string former_memory_message(const Placement& placement, const ParamSlot& slot) {
  return placement.where("raw access") + "the tensor shared the memory of parameter '" + slot.name() +
         "' (a view, a detach(), a data() or a set_data() from before fsdp::fully_shard or fsdp::set_strategy), whose "
         "values are in different memory now. Take the tensor from the parameter when it is needed, or clone() it "
         "before fsdp::fully_shard; tie weights by assigning the tensor itself: a->weight = b->weight";
}

}  // namespace

ShardedParams::ShardedParams(const GroupSpec& group, const std::shared_ptr<memory::ByteAccount>& account)
    : group_name(group.name), placement(group.placement), disk_folder(group.policy.disk_folder) {
  const auto& parameters = group.parameters;
  std::vector<std::pair<FlatForms, std::vector<size_t>>> by_forms;
  for (size_t i : c10::irange(parameters.size())) {
    const auto forms = forms_of(parameters[i], group.policy.row_memory);
    const auto known = std::ranges::find(by_forms, forms, [](const auto& entry) { return entry.first; });
    (known == by_forms.end() ? by_forms.emplace_back(forms, std::vector<size_t>()) : *known).second.push_back(i);
  }
  slots_.reserve(parameters.size());
  for (const auto& [forms, members] : by_forms) {
    std::vector<int64_t> bytes;
    for (size_t i : members) bytes.push_back(static_cast<int64_t>(forms.whole.bytes(parameters[i].tensor.numel())));
    const auto runs = placement.is_replicated_only()
                          ? cut_buckets(bytes, kLastBucketBytes, group.policy.bucket_cap_bytes)
                          : std::vector<SlotRun>{{0, members.size()}};
    for (const auto& run : runs)
      add_planes(forms, std::span(members).subspan(run.begin, run.end - run.begin), group, account);
  }
  cut_into_buckets();
}

void ShardedParams::add_planes(const FlatForms& forms, std::span<const size_t> members, const GroupSpec& group,
                               const std::shared_ptr<memory::ByteAccount>& account) {
  const auto& shard = placement.shard();
  std::vector<layout::Item> items;
  for (size_t i : members) {
    const auto& tensor = group.parameters[i].tensor;
    items.push_back({tensor.sizes().vec(), tensor.is_contiguous()});
  }
  const layout::Alignment alignment{std::max(alignment_of(forms.rows), alignment_of(forms.whole)),
                                    slice_multiple(forms)};
  for (auto& plane : layout::plan_planes(items, shard.world_size(), alignment)) {
    runs_.push_back({slots_.size(), slots_.size() + plane.items.size()});
    for (size_t item : c10::irange(plane.items.size())) {
      const auto& placed = plane.items[item];
      const SlotPlace place{.plane = flats_.size(), .item = item, .given = members[placed.number]};
      slots_.emplace_back(group.parameters[place.given], place, placed, plane.rows_of(item, shard.rank()), forms.rows,
                          forms.whole);
    }
    auto& flat = flats_.emplace_back(forms, std::move(plane), shard.rank(), account);
    flat.keeps_whole_memory = !group.policy.free_when_written;
    if (forms.rows.device != forms.whole.device)
      flat.keep_on_host(group.rank_state->host_copies, group.policy.row_memory == RowMemory::kPinned);
  }
}

void ShardedParams::cut_into_buckets() {
  const auto device_of = [&](size_t plane) { return flats_[plane].whole().form.device; };
  const bool are_single = placement.is_replicated_only();
  for (size_t plane : c10::irange(flats_.size())) {
    const auto found = std::ranges::find_if(buckets_, [&](const auto& planes) {
      return !are_single && device_of(planes.front()) == device_of(plane);
    });
    (found == buckets_.end() ? buckets_.emplace_back() : *found).push_back(plane);
  }
  if (are_single) std::ranges::reverse(buckets_);
  if (buckets_.empty()) buckets_.emplace_back();
  for (size_t bucket : c10::irange(buckets_.size())) {
    size_t number = 0;
    for (const size_t plane : buckets_[bucket])
      for (auto& slot : slots_in(plane)) {
        slot.place.bucket = bucket;
        slot.place.number = number++;
      }
  }
}

ShardedParams::~ShardedParams() {
  for (auto& slot : slots_) {
    registry().remove(slot.rows_storage.impl());
    registry().remove(slot.whole_storage.impl());
    if (auto* old = slot.gradient_storage._unsafe_get_target()) registry().remove(old);
  }
}

void ShardedParams::take_rows(const std::vector<at::Tensor>& wholes) {
  const OwnOperators own_operators;
  for (auto& slot : slots_) {
    const auto& rows = flats_[slot.place.plane].rows();
    if (rows.form.device.is_meta()) continue;
    slot.rows_storage.attach(rows.buffer, rows.byte_offset + byte_offset_in_slice(slot));
    if (const auto& whole = wholes[slot.place.given]; whole.defined()) slot.copy_rows(whole, slot.rows_tensor);
  }
}

// Returns 0 for a slot without rows.
size_t ShardedParams::byte_offset_in_slice(const ParamSlot& slot) {
  const auto& flat = flats_[slot.place.plane];
  if (slot.rows_numel() == 0) return 0;
  return flat.rows().form.bytes(slot.offset_of_rows() - placement.shard().rank() * flat.plane().slice_numel);
}

std::string ShardedParams::no_memory_message(const ParamSlot& slot) const {
  return placement.where("raw access") + "parameter '" + slot.name() +
         "' is sharded and its whole value is not in memory. Inside a forward scope let an operator read the "
         "parameter, or gather it with Group::unshard() or fsdp::summon_full_params; to save a model, save outside the "
         "scope";
}

void ShardedParams::install(const std::shared_ptr<ParamGroup>& owner) {
  owner_ = owner;
  for (size_t i : c10::irange(slots_.size())) {
    auto& slot = slots_[i];
    const auto tensor = slot.tensor();
    slot.no_memory_error = no_memory_message(slot);
    slot.whole_storage.detach(slot.no_memory_error);
    slot.mark = c10::make_intrusive<RowMark>(owner_, i);
    registry().add(slot.rows_storage.impl(), owner_, i, PartKind::kRows);
    registry().add(slot.whole_storage.impl(), owner_, i, PartKind::kWhole);
    const auto former = tensor.storage();
    const bool is_all = former.nbytes() == tensor.nbytes();  // otherwise other tensors may use the rest of the storage
    slot.show_rows();
    if (former.use_count() > 1 && is_all) memory::end_storage(former, former_memory_message(placement, slot));
  }
}

bool ShardedParams::every_rank_has_rows() const {
  for (int rank : c10::irange(placement.shard().world_size()))
    if (std::ranges::none_of(slots_, [&](const ParamSlot& slot) {
          return flats_[slot.place.plane].plane().rows_of(slot.place.item, rank).count * slot.row_numel() > 0;
        }))
      return false;
  return true;
}

at::Tensor ShardedParams::rows_of_slice(const ParamSlot& slot, const memory::FlatPart& slice) {
  memory::PartStorage storage(slice.form.device, slice.form.bytes(slot.rows_numel()));
  storage.attach(slice.buffer, slice.byte_offset + byte_offset_in_slice(slot));
  return slot.rows_on(storage);
}

void ShardedParams::register_gradient(ParamSlot& slot, const at::Tensor& gradient) {
  if (auto* old = slot.gradient_storage._unsafe_get_target()) registry().remove(old);
  auto* storage = gradient.storage().unsafeGetStorageImpl();
  slot.gradient_storage =
      c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
  registry().add(storage, owner_, static_cast<size_t>(&slot - slots_.data()), PartKind::kGradient);
}

}  // namespace fsdp::runtime
