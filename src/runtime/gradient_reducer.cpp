#include "runtime/gradient_reducer.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/irange.h>

#include <algorithm>

#include "comm/core/fault_point.h"
#include "memory/part_storage.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"

namespace fsdp::runtime {

using memory::ByteClass;

void GradientReducer::expect(const std::function<bool(const ParamSlot&)>& expects, bool may_recompute) {
  expect_nothing();
  for (auto& slot : group_.slots()) {
    const bool is_expected = expects(slot);
    slot.comes_from_inside = !is_expected && may_recompute && slot.was_read_unrecorded && slot.requires_grad();
    slot.is_missing = is_expected || slot.comes_from_inside;
    expected_ += is_expected ? 1 : 0;
    missing_from_inside_ += slot.comes_from_inside ? 1 : 0;
  }
  missing_ = expected_;
}

void GradientReducer::expect_nothing() {
  for (auto& slot : group_.slots()) slot.is_missing = slot.has_arrived = false;
  expected_ = missing_ = missing_from_inside_ = 0;
}

void GradientReducer::add(size_t slot_index, at::Tensor gradient, bool from_inside) {
  auto& slot = group_.slots()[slot_index];
  slot.has_arrived = true;
  if (slot.is_missing && slot.comes_from_inside == from_inside) {
    slot.is_missing = false;
    --(from_inside ? missing_from_inside_ : missing_);
  }
  if (gradient.requires_grad()) {
    TORCH_WARN_ONCE(group_.where("backward"), "with create_graph = true the gradient of parameter '", slot.name(),
                    "' in .grad is no part of a graph. For a penalty on gradients of parameters take "
                    "torch::autograd::grad(..., create_graph) in the forward scope.");
    gradient = gradient.detach().clone();
  }
  if (slot.arrived_gradient.defined()) {
    slot.arrived_gradient.add_(gradient);
    return;
  }
  slot.arrived_gradient = gradient.is_sparse() ? gradient.to_dense() : std::move(gradient);
  ++waiting_;
  slot.arrived_charge = memory::Charge(group_.rank_state().account(), ByteClass::kGradient,
                                       static_cast<int64_t>(slot.arrived_gradient.nbytes()));
}

// The whole gradients of one flat buffer where they lie; the slots let them go.
std::vector<Piece> GradientReducer::take_pieces(size_t flat_index, std::vector<memory::Charge>& charges) {
  const auto& flat = group_.flats()[flat_index];
  std::vector<Piece> pieces;
  for (size_t i : c10::irange(group_.slots().size())) {
    auto& slot = group_.slots()[i];
    if (group_.place(i).flat != flat_index || !slot.arrived_gradient.defined()) continue;
    auto gradient = std::exchange(slot.arrived_gradient, at::Tensor());
    --waiting_;
    charges.push_back(std::move(slot.arrived_charge));
    if (slot.numel() > 0)
      pieces.push_back({flat.layout().offsets[group_.place(i).item], slot.flat_in_memory_order(gradient)});
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.first < b.first; });
  return pieces;
}

GradientReducer::InFlight GradientReducer::start_flat(size_t flat_index) {
  auto& flat = group_.flats()[flat_index];
  Tag tag = group_.tag(group_.name());
  if (divide_factor) tag.subject += c10::str(" divided by ", *divide_factor);  // or ranks could differ unseen
  for (size_t i : c10::irange(group_.slots().size()))
    if (group_.place(i).flat == flat_index) tag.votes.push_back(group_.slots()[i].arrived_gradient.defined());
  InFlight result{flat_index, {}, nullptr, nullptr};
  auto pieces = take_pieces(flat_index, result.charges);
  auto& process_group = group_.process_group();
  int64_t slice = flat.layout().slice_numel(process_group.rank());
  size_t bytes = static_cast<size_t>(slice) * flat.element_size();
  result.output = std::make_shared<memory::FlatBuffer>(flat.gradient_memory().take(bytes), bytes,
                                                       group_.rank_state().shared_account(), ByteClass::kGradient);
  double divisor = divide_factor.value_or(process_group.world_size());
  result.work = process_group.reductions().reduce_scatter(memory::flat_tensor(result.output, 0, slice, flat.dtype()),
                                                          std::move(pieces), flat.layout().boundaries, 1.0 / divisor,
                                                          std::move(tag));
  return result;
}

void GradientReducer::start() {
  TORCH_INTERNAL_ASSERT(state_ == ReductionState::kIdle, "reduction of '", group_.name(), "' is in flight");
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard own_operators(kShardedKey);
  state_ = ReductionState::kReducing;
  ++reduction_number_;
  for (size_t flat : c10::irange(group_.flats().size())) {
    bool trains = false;
    for (size_t i : c10::irange(group_.slots().size()))
      trains |= group_.place(i).flat == flat &&
                (group_.slots()[i].requires_grad() || group_.slots()[i].arrived_gradient.defined());
    if (trains) in_flight_.push_back(start_flat(flat));
  }
  ++group_.counts.reductions;
  fault_point("gradients reducing");
}

// While this thread waits, others may finish the same reduction, or drop it.
void GradientReducer::finish() {
  if (state_ == ReductionState::kIdle) return;
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard own_operators(kShardedKey);
  while (state_ == ReductionState::kReducing) {
    const uint64_t number = reduction_number_;
    const auto is_under_way = [&] { return state_ == ReductionState::kReducing && reduction_number_ == number; };
    std::vector<std::shared_ptr<Work>> works;
    for (const auto& flat : in_flight_) works.push_back(flat.work);
    try {
      for (const auto& work : works) group_.rank_state().wait(*work);
    } catch (...) {
      if (is_under_way()) take_in_flight();
      throw;
    }
    if (is_under_way())
      for (auto& flat : take_in_flight()) {
        flat.charges.clear();
        hand_out(flat);
      }
    fault_point("gradients reduced");
  }
}

std::vector<GradientReducer::InFlight> GradientReducer::take_in_flight() {
  state_ = ReductionState::kIdle;
  return std::exchange(in_flight_, {});
}

void GradientReducer::hand_out(const InFlight& reduced) {
  auto votes = reduced.work->votes();
  if (std::none_of(votes.begin(), votes.end(), [](uint8_t vote) { return vote != 0; })) return;
  size_t vote = 0;
  for (size_t i : c10::irange(group_.slots().size()))
    if (group_.place(i).flat == reduced.flat && votes[vote++] != 0) hand_out_slot(i, reduced);
}

// A plain tensor on storage of its own, not a view: zero_grad() cannot detach views in place.
void GradientReducer::hand_out_slot(size_t slot_index, const InFlight& reduced) {
  auto& slot = group_.slots()[slot_index];
  auto& flat = group_.flats()[reduced.flat];
  int64_t begin = flat.layout().boundaries[group_.process_group().rank()];
  int64_t first = flat.layout().offsets[group_.place(slot_index).item] + slot.rows().first * slot.row_numel();
  memory::PartStorage storage(flat.device(), static_cast<size_t>(slot.rows_numel()) * flat.element_size());
  size_t offset = slot.rows_numel() == 0 ? 0 : static_cast<size_t>(first - begin) * flat.element_size();
  storage.attach(reduced.output, offset);
  group_.accumulate_gradient(slot_index, slot.rows_on(storage));
}

void GradientReducer::reset() {
  take_in_flight();
  for (auto& slot : group_.slots()) {
    slot.arrived_gradient.reset();
    slot.arrived_charge = {};
  }
  waiting_ = 0;
  expect_nothing();
}

}  // namespace fsdp::runtime
