#include "runtime/group_backward.h"

#include <c10/core/StreamGuard.h>
#include <c10/util/irange.h>

#include <memory>
#include <utility>

#include "comm/core/fault_point.h"
#include "comm/core/text.h"
#include "runtime/compat.h"

namespace fsdp::runtime {
namespace {

// The planes of each bucket, in the order in which buckets are reduced; see Note [Order of buckets]. Without buckets
// the planes of one device travel together.
std::vector<std::vector<size_t>> buckets_of(const GroupIdentity& group, ShardedParams& params) {
  if (!group.placement.is_replicated_only()) return params.planes_by_device();
  std::vector<std::vector<size_t>> buckets;
  for (size_t plane = params.flats().size(); plane-- > 0;) buckets.push_back({plane});
  if (buckets.empty()) buckets.emplace_back();
  return buckets;
}

}  // namespace

GroupBackward::GroupBackward(const GroupIdentity& group, ShardedParams& params)
    : group_(group), params_(params), slots_(params.count()) {
  for (auto& planes : buckets_of(group, params)) {
    auto& bucket = buckets_.emplace_back();
    for (const size_t plane : planes) {
      const auto run = params.slots_in(plane);
      for (size_t slot = run.begin; slot < run.end; ++slot) {
        slots_[slot].bucket = buckets_.size() - 1;
        slots_[slot].number = bucket.slots.size();
        bucket.slots.push_back(slot);
      }
    }
    bucket.planes = std::move(planes);
  }
}

bool GroupBackward::expects_any() const {
  return std::ranges::any_of(buckets_, [](const Bucket& bucket) { return bucket.expectations.expects_any(); });
}

bool GroupBackward::has_gradients_in(size_t bucket) const {
  return std::ranges::any_of(buckets_[bucket].slots, [this](size_t slot) { return slots_[slot].waits; });
}

void GroupBackward::enter(int task, bool (*expects)(const ParamSlot&), bool may_recompute) {
  if (!is_open_) open(expects, may_recompute);
  tasks_.push_back(task);
}

void GroupBackward::open(bool (*expects)(const ParamSlot&), bool may_recompute) {
  for (auto& bucket : buckets_) bucket.expectations.begin(bucket.slots.size());
  for (size_t i : c10::irange(slots_.size())) {
    auto& expectations = buckets_[slots_[i].bucket].expectations;
    const auto& parameter = params_.slots()[i];
    if (auto tensor = parameter.tensor(); tensor.defined())
      slots_[i].parked = std::exchange(tensor.mutable_grad(), at::Tensor());
    if (expects(parameter))
      expectations.expect(slots_[i].number, GradientSource::kTask);
    else if (may_recompute && slots_[i].was_read_unrecorded && parameter.requires_grad())
      expectations.expect(slots_[i].number, GradientSource::kInside);
  }
  is_open_ = true;
}

std::string GroupBackward::leave(int task) {
  std::erase(tasks_, task);
  if (!tasks_.empty() || !is_open()) return {};
  close();
  return std::exchange(error_, {});
}

void GroupBackward::close() {
  finish_landing();
  is_open_ = has_news_ = is_handed_out_ = false;
  for (auto& bucket : buckets_) {
    bucket.state = BucketState::kCollecting;
    bucket.expectations.begin(bucket.slots.size());
  }
  for (size_t i : c10::irange(slots_.size())) {
    slots_[i].has_arrived = false;
    auto gradient = std::exchange(slots_[i].parked, at::Tensor());
    if (gradient.defined()) memory::note_use(gradient);  // by those to whom it is handed out
    if (auto tensor = params_.slots()[i].tensor(); tensor.defined()) tensor.mutable_grad() = std::move(gradient);
  }
}

void GroupBackward::exchange_gradients() {
  finish_landing();
  for (size_t i : c10::irange(slots_.size())) {
    if (slots_[i].parked.defined()) memory::note_use(slots_[i].parked);  // by those who get it
    if (auto tensor = params_.slots()[i].tensor(); tensor.defined()) std::swap(slots_[i].parked, tensor.mutable_grad());
  }
}

void GroupBackward::add(size_t index, at::Tensor gradient, bool from_inside) {
  auto& slot = slots_[index];
  slot.has_arrived = true;
  buckets_[slot.bucket].expectations.arrive(slot.number, from_inside ? GradientSource::kInside : GradientSource::kTask);
  if (!std::exchange(slot.waits, true)) ++waiting_;
  if (!group_.rank_state->has_data) return;
  if (gradient.requires_grad()) {
    TORCH_WARN_ONCE(group_.where("backward"), "with create_graph = true the gradient of parameter '",
                    params_.slots()[index].name(),
                    "' in .grad is no part of a graph. For a penalty on gradients of parameters take "
                    "torch::autograd::grad(..., create_graph) in the forward scope.");
    gradient = gradient.detach().clone();
  }
  if (auto sum = slot.arrived.take(); sum.defined()) {
    // Many small gradients would be lost in a sum of low precision.
    const auto dtype = params_.slots()[index].rows_tensor.scalar_type();
    if (sum.scalar_type() != dtype) slot.charge = charge_of(sum = sum.to(dtype));
    return slot.arrived.put(sum.add_(gradient));
  }
  if (gradient.is_sparse()) gradient = gradient.to_dense();
  slot.charge = charge_of(gradient);
  slot.arrived.put(std::move(gradient));
}

memory::Charge GroupBackward::charge_of(const at::Tensor& gradient) const {
  return {group_.account, memory::ByteClass::kGradient, static_cast<int64_t>(gradient.nbytes())};
}

int64_t GroupBackward::arrived_bytes() {
  int64_t bytes = 0;
  for (size_t i : c10::irange(slots_.size()))
    if (const auto& whole = params_.slots()[i].whole_tensor; slots_[i].has_arrived && whole.is_cpu())
      bytes += static_cast<int64_t>(whole.nbytes());
  return bytes;
}

// The whole gradients of the parameters in one plane, where they are, with what was kept of this rank's rows; the slots
// let them go.
void GroupBackward::take_gradients(const ReducedPlane& plane, PartialSum& kept, Contribution& taken) {
  const auto dtype = plane.rows.form.dtype;
  const auto slice = kept.rows[plane.flat].take();
  if (slice.defined()) memory::note_use(slice);
  const auto run = params_.slots_in(plane.flat);
  const int64_t begin_of_slice = group_.placement.shard().rank() * params_.flats()[plane.flat].plane().slice_numel;
  auto& pieces = taken.planes.emplace_back();
  for (size_t i = run.begin; i < run.end; ++i) {
    const auto& parameter = params_.slots()[i];
    auto gradient = slots_[i].arrived.take();
    const bool was_kept = kept.has(slots_[i].number);
    taken.votes[slots_[i].number] = gradient.defined() || was_kept;
    taken.takes_part[slots_[i].number] = 1;
    if (std::exchange(slots_[i].waits, false)) --waiting_;
    if (gradient.defined()) {
      if (taken.factor != 1.0) gradient = gradient.mul(taken.factor);  // others may have it too
      if (gradient.scalar_type() != dtype) slots_[i].charge = charge_of(gradient = gradient.to(dtype));
      taken.charges.push_back(std::move(slots_[i].charge));
      gradient = parameter.flat_in_memory_order(gradient);
    }
    const int64_t first = params_.offset_in_plane(i);
    const int64_t first_of_rows = first + parameter.rows().first * parameter.row_numel();
    at::Tensor rows;
    if (was_kept && parameter.rows_numel() > 0)
      rows = slice.narrow(0, first_of_rows - begin_of_slice, parameter.rows_numel());
    if (gradient.defined() || rows.defined()) add_pieces(pieces, first, gradient, first_of_rows, rows);
  }
}

// Returns what this rank contributes to the reduction of a bucket.
Contribution GroupBackward::take_contribution(Bucket& bucket, const std::vector<ReducedPlane>& planes) {
  auto kept = std::exchange(bucket.partial_sum, {});
  Contribution taken{.votes = std::vector<uint8_t>(bucket.slots.size()),
                     .takes_part = std::vector<uint8_t>(bucket.slots.size()),
                     .joined = kept.reductions};
  // All planes count, also those that do not train now: sums that were kept before must have the same factor.
  for (const size_t plane : bucket.planes) {
    const auto dtype = params_.flats()[plane].reduced_form().dtype;
    taken.factor = std::min(taken.factor, factor_before_sum(dtype, group_.placement));
  }
  for (const auto& plane : planes) take_gradients(plane, kept, taken);
  return taken;
}

// Whether a plane takes part in the reduction of its bucket.
bool GroupBackward::trains(const Bucket& bucket, size_t plane) {
  if (bucket.partial_sum.rows.contains(plane)) return true;
  const auto run = params_.slots_in(plane);
  for (size_t i = run.begin; i < run.end; ++i)
    if (params_.slots()[i].requires_grad() || slots_[i].waits) return true;
  return false;
}

// Returns the reduced gradients in the form of the rows.
memory::FlatPart GroupBackward::land(const ReducedPlane& reduced) {
  auto& flat = params_.flats()[reduced.flat];
  if (!flat.lands_elsewhere()) return reduced.rows;
  auto landed = flat.allocate_gradient();
  flat.land(reduced.rows.tensor(), landed);
  return landed;
}

// All that is on its way is there, and is added to the rows' gradients.
void GroupBackward::finish_landing() {
  if (landings_.empty()) return;
  const OwnOperators own_operators;
  for (auto& flat : params_.flats()) flat.finish_landing();
  if (!params_.is_on_cpu()) group_.placement.progress();  // the host may have waited for what was aborted
  for (const auto& [flat, votes, slice] : std::exchange(landings_, {})) {
    const auto run = params_.slots_in(flat);
    for (size_t i = run.begin; i < run.end; ++i)
      if (votes[slots_[i].number] != 0) add_to_rows(i, params_.rows_of_slice(i, slice));
  }
}

std::optional<c10::Stream> GroupBackward::stream_of_results() {
  for (const auto& flat : params_.flats())
    if (const auto stream = flat.stream_of_results()) return stream;
  return std::nullopt;
}

void GroupBackward::start_reduction(size_t index, const ReductionPolicy& policy, Tag::Count count) {
  auto& bucket = buckets_[index];
  finish_reduction(bucket, policy);
  if (!is_open()) return;  // reset_iter_state() came while this thread waited
  const OwnOperators own_operators;
  bucket.state = BucketState::kReducing;
  ++bucket.reduction_number;
  auto subject = group_.name;
  if (buckets_.size() > 1) subject += str_cat(" (bucket ", index + 1, " of ", buckets_.size(), ')');
  const Span span(group_.rank_state->timeline, Track::kCompute, "reduce", subject);
  try {
    std::vector<ReducedPlane> planes;
    for (const size_t plane : bucket.planes)
      if (trains(bucket, plane)) planes.push_back({plane, params_.flats()[plane].allocate_reduced()});
    if (!planes.empty()) {
      auto contribution = take_contribution(bucket, planes);
      bucket.in_flight = reduce(group_, subject, std::move(planes), std::move(contribution), policy, count);
    }
  } catch (...) {
    group_.placement.pass_on_failure("backward");
    throw;
  }
  ++reductions_;
  fault_point("gradients reducing");
}

void GroupBackward::finish_reductions(const ReductionPolicy& policy) {
  for (auto& bucket : buckets_) finish_reduction(bucket, policy);
}

// While this thread waits, others may finish the same reduction, or drop it.
void GroupBackward::finish_reduction(Bucket& bucket, const ReductionPolicy& policy) {
  const OwnOperators own_operators;
  while (bucket.in_flight) {
    const uint64_t number = bucket.reduction_number;
    const auto is_under_way = [&] { return bucket.in_flight && bucket.reduction_number == number; };
    const auto work = bucket.in_flight->started.work;
    const c10::OptionalStreamGuard guard(stream_of_results());
    try {
      const Span waiting(group_.rank_state->timeline, Track::kCompute, "wait for reduction", group_.name);
      group_.rank_state->wait(*work);
    } catch (...) {
      if (is_under_way()) {
        take_in_flight(bucket);
        group_.placement.pass_on_failure("backward");
      }
      throw;
    }
    if (is_under_way()) hand_out(bucket, *take_in_flight(bucket), policy);
    fault_point("gradients reduced");
  }
  take_in_flight(bucket);
}

// kReducing -> kReduced, else nothing
std::optional<ReductionInFlight> GroupBackward::take_in_flight(Bucket& bucket) {
  if (bucket.state == BucketState::kReducing) bucket.state = BucketState::kReduced;
  return std::exchange(bucket.in_flight, std::nullopt);
}

void GroupBackward::hand_out(Bucket& bucket, ReductionInFlight reduced, const ReductionPolicy& policy) {
  reduced.own.charges.clear();
  const auto votes = reduced.votes();
  if (reduced.is_within_replica) {
    auto& kept = bucket.partial_sum;
    kept.reductions = reduced.own.joined + 1;
    kept.votes = votes;
    for (const auto& plane : reduced.planes) {
      kept.rows[plane.flat].put(plane.rows.tensor());
      memory::note_use(plane.rows.tensor());
    }
    return;
  }
  has_news_ = true;
  if (std::ranges::none_of(votes, [](uint8_t vote) { return vote != 0; })) return;
  reduced.finish();
  for (const auto& plane : reduced.planes) {
    if (const auto hook = policy.hook) {  // which may set another one
      const UsersOperators users_operators;
      hook(plane.rows.tensor());
    }
    landings_.push_back({plane.flat, votes, land(plane)});
  }
  // What the host has to wait for it waits for once, when somebody is to see it.
  if (!is_open_ || !params_.flats()[reduced.planes.front().flat].is_on_host()) finish_landing();
}

// Their gradient is parked while a backward is open.
void GroupBackward::add_to_rows(size_t index, at::Tensor gradient) {
  const auto parameter = params_.slots()[index].tensor();
  if (!is_open_ && !parameter.defined()) return;
  auto& sum = is_open_ ? slots_[index].parked : parameter.mutable_grad();
  if (!sum.defined()) {
    params_.register_gradient(index, gradient);
    sum = std::move(gradient);
  } else if (sum.sizes() == gradient.sizes()) {
    sum.add_(gradient);
    memory::note_use(sum);
    memory::note_use(gradient);
  } else {
    error_ = str_cat("parameter '", params_.slots()[index].name(), "' had a gradient of other sizes before: expected ",
                     gradient.sizes(), ", found ", sum.sizes(),
                     ". Assign a gradient of the rows' sizes, or call zero_grad() before backward");
  }
}

void GroupBackward::forget_reads() {
  first_read = 0;
  for (auto& slot : slots_) slot.was_read_unrecorded = false;
}

size_t GroupBackward::reset() {
  for (auto& bucket : buckets_) {
    bucket.in_flight.reset();
    bucket.state = BucketState::kCollecting;
    bucket.partial_sum = {};
  }
  for (auto& slot : slots_) {
    slot.arrived = {};
    slot.charge = {};
    slot.waits = false;
  }
  landings_.clear();
  for (auto& flat : params_.flats()) flat.drop_landing();
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
