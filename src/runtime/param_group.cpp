#include "runtime/param_group.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "comm/core/check.h"
#include "comm/core/fault_point.h"
#include "runtime/backward_hooks.h"
#include "runtime/compat.h"
#include "runtime/registry.h"
#include "runtime/scope.h"

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

std::string no_memory_message(const ParamGroup& group, const ParamSlot& slot) {
  return group.where("raw access") + "parameter '" + slot.name() +
         "' is sharded and its whole value is not in memory. Inside a forward scope let an operator read it, or bring "
         "it with Group::unshard() or fsdp::summon_full_params; to save a model, save outside the scope";
}

// For tensors that share a parameter's memory from before, and would never see another value of it.
std::string former_memory_message(const ParamGroup& group, const ParamSlot& slot) {
  return group.where("raw access") + "the tensor was on the memory of parameter '" + slot.name() +
         "' (a view, a detach(), a data() or a set_data() from before fsdp::fully_shard), which has its values "
         "elsewhere "
         "now. Take it from the parameter when it is needed, or clone() it before fsdp::fully_shard; tie weights by "
         "assigning the tensor itself: a->weight = b->weight";
}

}  // namespace

std::shared_ptr<ParamGroup> ParamGroup::create(const Spec& spec) {
  std::shared_ptr<ParamGroup> group(new ParamGroup(spec));
  group->place_parameters(spec.parameters);
  return group;
}

ParamGroup::ParamGroup(const Spec& spec)
    : policy(spec.policy),
      name_(spec.name),
      process_group_(spec.process_group),
      rank_state_(spec.rank_state),
      modules_(spec.modules) {
  id_ = rank_state_->add(*this);
}

ParamGroup::~ParamGroup() {
  reading_->close();
  for (auto& slot : slots_) {
    registry().remove(slot.rows_storage.impl());
    registry().remove(slot.whole_storage.impl());
    if (auto* old = slot.gradient_storage._unsafe_get_target()) registry().remove(old);
  }
  rank_state_->remove(id_);
}

std::string ParamGroup::where(const std::string& operation) const {
  return fsdp::where(process_group_->rank(), process_group_->world_size(), operation);
}

void ParamGroup::rename_slot(size_t index, std::string name) {
  auto& slot = slots_[index];
  if (slot.name() == name) return;
  slot.rename(std::move(name));
  slot.no_memory_error = no_memory_message(*this, slot);
  if (gather_state_ != GatherState::kWhole) slot.whole_storage.detach(slot.no_memory_error);
}

void ParamGroup::place_parameters(const std::vector<NamedParameter>& parameters) {
  places_.resize(parameters.size());
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
    auto layout = layout::plan_rows(items, process_group_->world_size(),
                                    std::max<int64_t>(1, alignment / static_cast<int64_t>(c10::elementSize(dtype))));
    flats_.emplace_back(dtype, device, std::move(layout), process_group_->rank(), rank_state_->shared_account());
  }
  every_rank_has_rows_ = true;
  for (int rank : c10::irange(process_group_->world_size()))
    every_rank_has_rows_ &= std::any_of(flats_.begin(), flats_.end(),
                                        [&](const FlatParams& flat) { return flat.layout().owned_numel(rank) > 0; });
}

void ParamGroup::take_rows(const std::vector<NamedParameter>& parameters, const std::vector<at::Tensor>& values) {
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard own_operators(kShardedKey);
  int rank = process_group_->rank();
  slots_.reserve(parameters.size());
  for (size_t i : c10::irange(parameters.size())) {
    auto& flat = flats_[places_[i].flat];
    const auto& layout = flat.layout();
    slots_.emplace_back(parameters[i], layout.rows_of(places_[i].item, rank));
    auto& slot = slots_.back();
    int64_t first = layout.offsets[places_[i].item] + slot.rows().first * slot.row_numel() - layout.boundaries[rank];
    size_t offset = slot.rows_numel() == 0 ? 0 : static_cast<size_t>(first) * flat.element_size();
    slot.rows_storage.attach(flat.shard_buffer(), flat.shard_byte_offset() + offset);
    if (slot.rows_numel() > 0) slot.rows_tensor.copy_(slot.rows_of(values[i]));
  }
}

void ParamGroup::install() {
  auto self = shared_from_this();
  for (size_t i : c10::irange(slots_.size())) {
    auto& slot = slots_[i];
    const auto tensor = slot.tensor();
    slot.no_memory_error = no_memory_message(*this, slot);
    slot.whole_storage.detach(slot.no_memory_error);
    registry().add(slot.rows_storage.impl(), self, i, PartKind::kRows);
    registry().add(slot.whole_storage.impl(), self, i, PartKind::kWhole);
    const auto former = tensor.storage();
    const auto range = memory::range_of(tensor);
    slot.show_rows();
    if (former.use_count() > 1) leave_to_others(former, range, slot);
    hook_parameter(tensor, self, i);
  }
}

// Memory that others have too. All of it was the parameter's, or there is more of it, which is used on.
void ParamGroup::leave_to_others(const c10::Storage& former, const memory::MemoryRange& range, const ParamSlot& slot) {
  auto error = former_memory_message(*this, slot);
  if (former.nbytes() == static_cast<size_t>(range.end - range.begin))
    memory::end_storage(former, error);
  else
    registry().add_former({former.getWeakStorageImpl(), weak_from_this(), range, std::move(error)});
}

void ParamGroup::add_parent(ParamGroup& parent) {
  if (std::ranges::find(parents_, parent.id_) != parents_.end()) return;
  parents_.push_back(parent.id_);
  if (parent.slots_.empty()) kept_alive_.push_back(parent.shared_from_this());
  rank_state_->forget_kinship();
}

void ParamGroup::start_gather() {
  if (gather_state_ != GatherState::kSharded) return;
  bool moves = std::any_of(flats_.begin(), flats_.end(), [](const FlatParams& flat) { return !flat.shares_memory(); });
  try {
    // All memory first: a rank that has too little of it has not begun what its peers would wait for.
    for (auto& flat : flats_) flat.allocate_whole();
    writes_in_copy_ = writes_;
    writes_told_ = moves || has_to_meet_ ? take_writes() : 0;
    const auto what = tag(name_, {}, writes_told_);
    for (auto& flat : flats_) flat.start_gather(process_group_->communicator(), what);
    if (has_to_meet_) flats_.front().start_meeting(process_group_->communicator(), what);
  } catch (...) {
    abandon_gather();
    throw;
  }
  gather_state_ = GatherState::kGathering;
  ++gather_number_;
  fault_point("group gathering");
  counts.gathers += moves;
  rank_state_->note_resident(*this);
}

// While this thread waits, others may finish the same gather, or free the group.
void ParamGroup::finish_gather() {
  while (gather_state_ != GatherState::kWhole) {
    start_gather();
    const uint64_t number = gather_number_;
    const auto is_under_way = [&] { return gather_state_ == GatherState::kGathering && gather_number_ == number; };
    std::vector<std::shared_ptr<Work>> gathers;
    for (auto& flat : flats_)
      if (flat.gather()) gathers.push_back(flat.gather());
    try {
      for (const auto& gather : gathers) rank_state_->wait(*gather);
    } catch (...) {
      if (is_under_way()) abandon_gather();
      throw;
    }
    if (is_under_way()) become_whole();
  }
}

void ParamGroup::become_whole() {
  for (auto& flat : flats_) flat.end_gather();
  gather_state_ = GatherState::kWhole;
  writes_told_ = 0;
  has_to_meet_ = false;
  attach_whole();
  fault_point("group whole");
}

// kSharded (half way), kGathering -> kSharded: as if it had not been tried.
void ParamGroup::abandon_gather() {
  give_back_writes(std::exchange(writes_told_, 0));
  drop_whole_buffers();
}

void ParamGroup::free_whole() {
  if (gather_state_ == GatherState::kSharded) return;
  detach_whole();
  drop_whole_buffers();
}

void ParamGroup::copy_whole() {
  free_whole();
  try {
    for (auto& flat : flats_)
      if (flat.shares_memory()) flat.copy_whole();
  } catch (...) {
    drop_whole_buffers();
    throw;
  }
  gather_state_ = GatherState::kWhole;
  attach_whole();
  rank_state_->note_resident(*this);
}

void ParamGroup::drop_whole_buffers() {
  for (auto& flat : flats_) flat.free_whole();
  gather_state_ = GatherState::kSharded;
  fault_point("group sharded");
  unshard_was_asked = false;
  rank_state_->forget_resident(*this);
}

void ParamGroup::attach_whole() {
  for (size_t i : c10::irange(slots_.size())) {
    auto& slot = slots_[i];
    const auto& flat = flats_[places_[i].flat];
    auto offset = static_cast<size_t>(flat.layout().offsets[places_[i].item]) * flat.element_size();
    slot.whole_storage.attach(flat.whole_buffer(), offset);
  }
}

void ParamGroup::detach_whole() {
  for (auto& slot : slots_) slot.whole_storage.detach(slot.no_memory_error);
}

bool ParamGroup::stays_after_forward() const {
  if (!policy.unshard_in_backward || unshard_was_asked || summon_depth > 0) return true;
  if (policy.reshard_after_forward) return !*policy.reshard_after_forward;
  return scope && scope->root == id_;
}

bool ParamGroup::stays_after_backward() const {
  return unshard_was_asked || summon_depth > 0 || !policy.reshard_after_backward;
}

void ParamGroup::drop_stale_copy() {
  if (writes_in_copy_ != writes_) free_whole();
}

void ParamGroup::enter() {
  if (depth_++ > 0) return;
  fault_point("group entered");
  for (auto& slot : slots_) slot.show_whole();
}

void ParamGroup::leave() {
  if (--depth_ > 0) return;
  fault_point("group left");
  for (auto& slot : slots_) slot.show_rows();
}

bool ParamGroup::begin_scope() {
  ++scopes_;
  backwards_after_writes_ = 0;
  is_written_by_all_ = has_to_meet_ = false;
  reading_->begin(epoch());
  return reading_->is_shared() && process_group_->world_size() > 1;
}

void ParamGroup::cancel_scope() {
  --scopes_;
  reading_->begin(epoch());
}

// A peer that has yet to make a write that this rank made before does not wait for it. What is read again has that
// write, where every rank counts it.
void ParamGroup::resume_reading() {
  if (std::exchange(is_written_by_all_, false)) {
    ++backwards_after_writes_;
    if (every_rank_has_rows_ && policy.unshard_in_backward && pins == 0) {
      free_whole();
      has_to_meet_ = reading_->is_shared() && process_group_->world_size() > 1;
    }
  }
  reading_->begin(epoch());
}

void ParamGroup::leave_reading() {
  if (!reading_->is_shared() || openings > 0) return;
  for (const auto& slot : slots_)
    if (const auto tensor = slot.tensor(); tensor.defined())
      if (const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(tensor))
        reading_->watch(accumulator);
  reading_->leave(scope && scope->is_hidden);
}

void ParamGroup::require_no_waiting_gradients(const std::string& operation) const {
  if (!reducer_.has_gradients()) return;
  require(
      false, where(operation), "gradients of '", name_,
      "' of a backward without synchronisation wait for their reduction and would be left out. Run the last backward "
      "of the iteration outside of no_sync(), with set_requires_gradient_sync(true); to drop them call "
      "reset_iter_state()");
}

bool ParamGroup::wait_to_write() {
  if (!reading_->is_shared()) return false;
  if (reading_->is_open())
    require(
        false, where("write"), "rows of '", name_,
        "' are to be written while another thread has a forward scope or a backward open. Threads that train one model "
        "take turns: write when the other one's backward has ended");
  const bool read = reading_->end();
  const uint64_t last_epoch = epoch();
  if (!read && written_in_epoch_ == last_epoch) return false;
  for (auto& flat : flats_)
    if (flat.shared()) rank_state_->wait_to_write(*flat.shared(), last_epoch);
  written_in_epoch_ = last_epoch;
  return true;
}

void ParamGroup::note_write(WriteKind kind, std::optional<size_t> slot) {
  while (wait_to_write()) {
  }
  is_written_by_all_ |= kind == WriteKind::kEveryRank;
  ++writes_;
  if (kind != WriteKind::kEveryRank || !every_rank_has_rows_) return;
  writes_to_slot_.resize(slots_.size());
  if (!slot)
    ++writes_to_all_slots_;
  else
    ++writes_to_slot_[*slot];
  most_to_slot_ = std::max(most_to_slot_, slot ? writes_to_slot_[*slot] : 0);
  if (writes_to_all_slots_ + most_to_slot_ <= writes_by_all_) return;
  ++writes_by_all_;
  ++total_writes_;
}

uint32_t ParamGroup::take_writes() {
  writes_to_slot_.clear();
  writes_to_all_slots_ = most_to_slot_ = 0;
  return std::exchange(writes_by_all_, 0);
}

void ParamGroup::park_gradients() {
  for (auto& slot : slots_)
    if (auto tensor = slot.tensor(); tensor.defined())
      slot.parked_gradient = std::exchange(tensor.mutable_grad(), at::Tensor());
}

void ParamGroup::accumulate_gradient(size_t index, at::Tensor gradient) {
  auto& slot = slots_[index];
  auto& parked = slot.parked_gradient;
  if (!parked.defined()) {
    register_gradient(index, gradient);
    parked = std::move(gradient);
  } else if (parked.sizes() == gradient.sizes()) {
    parked.add_(gradient);
  } else {
    gradient_error_ = c10::str("parameter '", slot.name(), "' had a gradient of other sizes before: expected ",
                               gradient.sizes(), ", found ", parked.sizes(),
                               ". Assign a gradient of the rows' sizes, or call zero_grad() before backward");
  }
}

void ParamGroup::unpark_gradients() {
  for (auto& slot : slots_) {
    auto gradient = std::exchange(slot.parked_gradient, at::Tensor());
    if (auto tensor = slot.tensor(); tensor.defined()) tensor.mutable_grad() = std::move(gradient);
  }
  const std::string error = std::exchange(gradient_error_, {});
  if (!error.empty()) require(false, where("backward"), error);
}

void ParamGroup::drop_gradients() {
  for (auto& slot : slots_)
    if (auto tensor = slot.tensor(); tensor.defined()) tensor.mutable_grad().reset();
}

void ParamGroup::register_gradient(size_t index, const at::Tensor& gradient) {
  auto& slot = slots_[index];
  if (auto* old = slot.gradient_storage._unsafe_get_target()) registry().remove(old);
  auto* storage = gradient.storage().unsafeGetStorageImpl();
  slot.gradient_storage =
      c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
  registry().add(storage, shared_from_this(), index, PartKind::kGradient);
}

void ParamGroup::forget_reads() {
  first_read = 0;
  for (auto& slot : slots_) slot.was_read_unrecorded = false;
}

void ParamGroup::reset() {
  reducer_.reset();
  gradient_error_.clear();
  if (!open_tasks.empty()) unpark_gradients();
  for (; !open_tasks.empty(); open_tasks.pop_back()) leave();
  free_whole();
  if (!is_inside()) end_reading();
  take_writes();
  total_writes_ = 0;
  forget_reads();
  reduced_in_task = false;
}

}  // namespace fsdp::runtime
