#include "runtime/group_backward.h"

#include <c10/util/irange.h>

#include <memory>
#include <utility>

#include "comm/core/fault_point.h"
#include "runtime/compat.h"

namespace fsdp::runtime {

void GroupBackward::enter(int task, bool (*expects)(const ParamSlot&), bool may_recompute) {
  if (state_ == BackwardState::kClosed) open(expects, may_recompute);
  tasks_.push_back(task);
}

// kClosed -> kCollecting
void GroupBackward::open(bool (*expects)(const ParamSlot&), bool may_recompute) {
  expectations_.begin(slots_.size());
  for (size_t i : c10::irange(slots_.size())) {
    const auto& parameter = params_.slots()[i];
    if (auto tensor = parameter.tensor(); tensor.defined())
      slots_[i].parked = std::exchange(tensor.mutable_grad(), at::Tensor());
    if (expects(parameter))
      expectations_.expect(i, GradientSource::kTask);
    else if (may_recompute && slots_[i].was_read_unrecorded && parameter.requires_grad())
      expectations_.expect(i, GradientSource::kInside);
  }
  state_ = BackwardState::kCollecting;
}

std::string GroupBackward::leave(int task) {
  std::erase(tasks_, task);
  if (!tasks_.empty() || !is_open()) return {};
  close();
  return std::exchange(error_, {});
}

// -> kClosed
void GroupBackward::close() {
  state_ = BackwardState::kClosed;
  expectations_.begin(slots_.size());
  for (size_t i : c10::irange(slots_.size())) {
    slots_[i].has_arrived = false;
    auto gradient = std::exchange(slots_[i].parked, at::Tensor());
    if (gradient.defined()) memory::note_use(gradient);  // by those to whom it is handed out
    if (auto tensor = params_.slots()[i].tensor(); tensor.defined()) tensor.mutable_grad() = std::move(gradient);
  }
}

void GroupBackward::add(size_t index, at::Tensor gradient, bool from_inside) {
  auto& slot = slots_[index];
  slot.has_arrived = true;
  expectations_.arrive(index, from_inside ? GradientSource::kInside : GradientSource::kTask);
  if (gradient.requires_grad()) {
    TORCH_WARN_ONCE(group_.where("backward"), "with create_graph = true the gradient of parameter '",
                    params_.slots()[index].name(),
                    "' in .grad is no part of a graph. For a penalty on gradients of parameters take "
                    "torch::autograd::grad(..., create_graph) in the forward scope.");
    gradient = gradient.detach().clone();
  }
  if (auto sum = slot.arrived.take(); sum.defined()) return slot.arrived.put(sum.add_(gradient));
  if (gradient.is_sparse()) gradient = gradient.to_dense();
  ++waiting_;
  slot.charge = memory::Charge(group_.rank_state->account(), memory::ByteClass::kGradient,
                               static_cast<int64_t>(gradient.nbytes()));
  slot.arrived.put(std::move(gradient));
}

int64_t GroupBackward::arrived_bytes() {
  int64_t bytes = 0;
  for (size_t i : c10::irange(slots_.size()))
    if (const auto& whole = params_.slots()[i].whole_tensor; slots_[i].has_arrived && whole.is_cpu())
      bytes += static_cast<int64_t>(whole.nbytes());
  return bytes;
}

// The whole gradients of one flat buffer where they lie, ascending as slots do; the slots let them go.
Contribution GroupBackward::take_contribution(size_t flat) {
  Contribution taken;
  for (size_t i : c10::irange(slots_.size())) {
    if (params_.place(i).flat != flat) continue;
    const auto gradient = slots_[i].arrived.take();
    taken.votes.push_back(gradient.defined());
    if (!gradient.defined()) continue;
    --waiting_;
    taken.charges.push_back(std::move(slots_[i].charge));
    const auto& parameter = params_.slots()[i];
    if (parameter.numel() > 0)
      taken.pieces.push_back(
          {params_.flats()[flat].layout().offsets[params_.place(i).item], parameter.flat_in_memory_order(gradient)});
  }
  return taken;
}

// Whether the flat buffer takes part in a reduction.
bool GroupBackward::trains(size_t flat) {
  for (size_t i : c10::irange(slots_.size()))
    if (params_.place(i).flat == flat && (params_.slots()[i].requires_grad() || slots_[i].arrived.defined()))
      return true;
  return false;
}

void GroupBackward::start_reduction(std::optional<double> divide_factor, uint32_t writes) {
  finish_reduction();
  if (!is_open()) return;  // reset_iter_state() came while this thread waited
  const OwnOperators own_operators;
  state_ = BackwardState::kReducing;
  ++reduction_number_;
  try {
    for (size_t flat : c10::irange(params_.flats().size()))
      if (trains(flat)) {
        in_flight_.push_back(
            reduce(*reduction_, group_, params_.flats()[flat], take_contribution(flat), divide_factor, writes));
        in_flight_.back().flat = flat;
      }
  } catch (...) {
    group_.placement.pass_on_failure("backward");
    throw;
  }
  ++reductions_;
  fault_point("gradients reducing");
}

// While this thread waits, others may finish the same reduction, or drop it.
void GroupBackward::finish_reduction() {
  if (state_ != BackwardState::kReducing) return;
  const OwnOperators own_operators;
  while (state_ == BackwardState::kReducing) {
    const uint64_t number = reduction_number_;
    const auto is_under_way = [&] { return state_ == BackwardState::kReducing && reduction_number_ == number; };
    std::vector<std::shared_ptr<Work>> works;
    for (const auto& flat : in_flight_) works.push_back(flat.started.work);
    try {
      for (const auto& work : works) group_.rank_state->wait(*work);
    } catch (...) {
      if (is_under_way()) {
        take_in_flight();
        group_.placement.pass_on_failure("backward");
      }
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

// kReducing -> kReduced
std::vector<ReductionInFlight> GroupBackward::take_in_flight() {
  state_ = BackwardState::kReduced;
  return std::exchange(in_flight_, {});
}

void GroupBackward::hand_out(ReductionInFlight& reduced) {
  const auto votes = reduced.started.work->votes();
  if (std::ranges::none_of(votes, [](uint8_t vote) { return vote != 0; })) return;
  const auto slice = params_.flats()[reduced.flat].land_gradient(reduced.finish());
  size_t vote = 0;
  for (size_t i : c10::irange(slots_.size()))
    if (params_.place(i).flat == reduced.flat && votes[vote++] != 0) add_to_parked(i, params_.rows_of_slice(i, slice));
}

void GroupBackward::add_to_parked(size_t index, at::Tensor gradient) {
  auto& parked = slots_[index].parked;
  if (!parked.defined()) {
    params_.register_gradient(index, gradient);
    parked = std::move(gradient);
  } else if (parked.sizes() == gradient.sizes()) {
    parked.add_(gradient);
    memory::note_use(parked);
    memory::note_use(gradient);
  } else {
    error_ = c10::str("parameter '", params_.slots()[index].name(), "' had a gradient of other sizes before: expected ",
                      gradient.sizes(), ", found ", parked.sizes(),
                      ". Assign a gradient of the rows' sizes, or call zero_grad() before backward");
  }
}

void GroupBackward::forget_reads() {
  first_read = 0;
  for (auto& slot : slots_) slot.was_read_unrecorded = false;
}

size_t GroupBackward::reset() {
  in_flight_.clear();
  for (auto& slot : slots_) {
    slot.arrived = {};
    slot.charge = {};
  }
  waiting_ = 0;
  if (is_open()) close();
  error_.clear();
  forget_reads();
  return std::exchange(tasks_, {}).size();
}

void GroupBackward::drop_gradients() {
  for (auto& slot : params_.slots())
    if (auto tensor = slot.tensor(); tensor.defined()) tensor.mutable_grad().reset();
}

}  // namespace fsdp::runtime
