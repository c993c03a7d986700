// The methods of a group's step, in the order in which they are called: a scope opens, parameters are unsharded, read
// and resharded, a backward enters, gradients arrive, are reduced and are added to the rows' gradients, the backward
// closes, and an optimizer writes the rows.

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "comm/core/check.h"
#include "comm/core/text.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"

namespace fsdp::runtime {

// ---- A scope opens

bool ParamGroup::begin_scope() {
  ++epochs_.scopes;
  epochs_.backwards_after_writes = 0;
  epochs_.is_written_by_all = epochs_.has_to_meet = false;
  epochs_.writes_seen = rank_state().writes_by_all;
  begin_read();
  if (meets()) publish();
  return meets();
}

void ParamGroup::cancel_scope() {
  --epochs_.scopes;
  begin_read();
}

void ParamGroup::begin_read() {
  if (params_->shared_buffers.empty()) return;
  epochs_.is_open = true;
  if (epochs_.reads && epochs_.epoch_read == epoch()) return;
  epochs_.reads = true;
  epochs_.epoch_read = epoch();
  for (auto* buffer : params_->shared_buffers) buffer->begin_read(epochs_.epoch_read);
}

void ParamGroup::enter() {
  if (depth_++ > 0) return;
  fault_point("group entered");
  for (auto& slot : slots()) slot.show_whole();
}

// ---- Unshard: whole parameters get memory

// Makes the last write visible to other ranks before they meet to read. Called only while this rank may write rows.
void ParamGroup::publish() {
  if (published_version_ == version_) return;
  for (auto& flat : flats()) flat.publish();
  published_version_ = version_;
}

void ParamGroup::unshard(const std::string& call) {
  if (state_ != GatherState::kSharded) return;
  const bool within = has_second_shard();
  if (!within)
    for (auto& flat : flats()) flat.drop_second_shard();
  const auto is_there = [](const FlatParams& flat) { return flat.shares_memory() || flat.keeps_whole(); };
  const bool moves = !std::ranges::all_of(flats(), is_there);
  const c10::OptionalStreamGuard guard(within ? std::nullopt : stream_of_gather());
  try {
    // All memory is allocated first: a rank that has too little must fail before it has started a collective for which
    // its peers would wait.
    for (auto& flat : flats()) flat.allocate_whole(/*fills_alone=*/within || policy.custom_all_gather);
    // Ranks compare their number of writes only in gathers of rows, because all ranks of the shard axis take part in
    // these.
    if (within) {
      start_gathers(placement().within->communicator(), tag(name_, 0, call), {}, within);
    } else {
      publish();
      version_in_copy_ = version_;
      const auto of_gather = tag(name_, moves || epochs_.has_to_meet ? writes_.tell() : 0, call);
      auto& ranks = placement().shard().communicator();
      start_gathers(ranks, of_gather, policy.custom_all_gather, within);
      if (epochs_.has_to_meet) gathers_.push_back(ranks.barrier(of_gather));
    }
  } catch (...) {
    drop_whole_buffers();
    placement().pass_on_failure("gather");
    throw;
  }
  state_ = GatherState::kGathering;
  fault_point("group gathering");
  gathers += moves;
  gathers_within += within && moves;
  gathers_in_place_ += params_->shares_memory() ? 1 : 0;
  if (!params_->rows_are_whole()) rank_state().residents.push_back(id_);
}

void ParamGroup::gather_after(std::shared_ptr<const c10::Event> event) {
  rows_written_ = params_->is_on_cpu() ? nullptr : std::move(event);
}

// Returns the stream on which rows are gathered, if it is not the current one: after set_post_optim_event the gather
// waits only for the user's event, and if rows are in host memory it waits for no other stream. Whole parameters are
// then allocated on that stream too, because memory from the current stream's pool may still be in use by queued work.
// Second shards are gathered on the current stream, which already waits for the gather from which they were taken.
std::optional<c10::Stream> ParamGroup::stream_of_gather() {
  if (!rows_written_ && std::ranges::none_of(flats(), &FlatParams::is_on_host)) return std::nullopt;
  auto& stream = rank_state().gather_stream;
  const auto device = flats().front().whole().form.device;
  if (!stream || stream->device() != device)
    stream = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  if (rows_written_) rows_written_->block(*stream);
  return stream;
}

// Starts one all-gather for each bucket that has planes to move: of second shards if `within`, otherwise of rows.
void ParamGroup::start_gathers(Communicator& ranks, const Tag& tag, const AllGather& with, bool within) {
  for (const auto& planes : params_->buckets()) {
    std::vector<GatherPlane> moving;
    for (const size_t number : planes)
      if (auto& flat = flats()[number]; within ? !flat.keeps_whole() : !flat.shares_memory())
        moving.push_back(within ? flat.plane_to_gather_among() : flat.plane_to_gather());
    if (moving.empty()) continue;
    gathers_.push_back(with ? with(ranks, std::move(moving), tag) : ranks.all_gather(std::move(moving), tag));
  }
}

bool ParamGroup::has_second_shard() {
  return version_in_copy_ == version_ && !flats().empty() &&
         std::ranges::all_of(flats(), &FlatParams::has_second_shard);
}

// While this thread waits, other threads may finish the same gather or free the group. The loop then starts again.
void ParamGroup::wait_for_unshard(const std::string& call) {
  const auto unsharding = state_ == GatherState::kWhole ? Span() : span("unshard");
  while (state_ != GatherState::kWhole) {
    unshard(call);
    const auto works = gathers_;
    const auto is_under_way = [&] { return state_ == GatherState::kGathering && gathers_ == works; };
    try {
      const auto waiting = works.empty() ? Span() : span("wait for all_gather");
      for (const auto& work : works) rank_state().wait(*work);
    } catch (...) {
      if (is_under_way()) {
        drop_whole_buffers();
        placement().pass_on_failure("gather");
      }
      throw;
    }
    if (!is_under_way()) continue;
    for (const auto& flat : flats())
      if (flat.is_on_disk()) flat.rows().buffer->mark_cold();
    state_ = GatherState::kWhole;
    epochs_.has_to_meet = false;
    params_->attach_whole();
    fault_point("group whole");
  }
  order_read();
}

// Makes the calling thread's current stream wait for the gather, even if another stream already waits for it.
void ParamGroup::order_read() {
  for (auto& flat : flats()) {
    if (!flat.note_reader()) continue;
    for (const auto& gather : gathers_) gather->wait();
    flat.order_read();
  }
}

// ---- Reshard: whole parameters lose their memory

void ParamGroup::reshard(bool keeps_second_shard) {
  if (keeps_second_shard && state_ == GatherState::kWhole && placement().within) {
    order_read();
    if (!has_second_shard())
      for (auto& flat : flats()) flat.keep_second_shard(*placement().within);
  } else {
    while (wait_for_operators()) {
    }
    if (pins.are_there()) {
      version_in_copy_ = -1;  // marks the copy as stale, so the next scope drops it (drop_stale_copy)
      return;
    }
    for (auto& flat : flats()) flat.drop_second_shard();
    if (state_ == GatherState::kSharded) return;
  }
  params_->detach_whole();
  drop_whole_buffers();
}

void ParamGroup::drop_whole_buffers() {
  gathers_.clear();
  for (auto& flat : flats()) flat.free_whole();
  state_ = GatherState::kSharded;
  fault_point("group sharded");
  unshard_was_asked = false;
  std::erase(rank_state().residents, id_);
}

void ParamGroup::copy_whole() {
  params_->detach_whole();
  order_read();
  try {
    for (auto& flat : flats())
      if (flat.is_seen_by_others()) flat.copy_whole();
  } catch (...) {
    drop_whole_buffers();
    throw;
  }
  params_->attach_whole();
}

// ---- The scope closes

void ParamGroup::leave() {
  if (--depth_ > 0) return;
  fault_point("group left");
  for (auto& slot : slots()) slot.show_rows();
}

void ParamGroup::leave_reading() {
  if (params_->shared_buffers.empty() || openings > 0) return;
  epochs_.is_open = false;
  // A rank without rows may never write, so no rank can rely on a write to end that rank's reading. Every rank
  // therefore ends its reading here, and the ranks meet again in each backward.
  if (!epochs_.counts_writes) {
    epochs_.writes_seen = UINT64_MAX;
    return end_read();
  }
  // Inside a custom Function autograd records nothing, but the Function's node refers to the gradient accumulators of
  // its operands. So an accumulator shows that a graph may exist.
  const auto may_be_read_again = [&](const ParamSlot& slot) {
    if (slot.was_read_unrecorded && scope && scope->records) return true;
    const auto tensor = slot.tensor();
    return tensor.defined() && torch::autograd::impl::try_get_grad_accumulator(tensor);
  };
  epochs_.has_graph |= (scope && scope->recorded) || std::ranges::any_of(slots(), may_be_read_again);
  if (!epochs_.has_graph) return end_read();
  rank_state().readers_at_rest[id_] = this;
}

void ParamGroup::end_read() {
  epochs_.has_graph = false;
  if (!std::exchange(epochs_.reads, false)) return;
  epochs_.written_in_epoch = UINT64_MAX;
  for (auto* buffer : params_->shared_buffers) buffer->end_read();
}

// ---- A backward enters

void ParamGroup::enter_backward(int task, bool (*expects)(const ParamSlot&), bool may_recompute) {
  enter();
  if (tasks_.empty()) {
    gathers_before_backward_ = gathers_in_place_;
    // This backward reads the values that its scope read. But if all ranks have written rows since the scope, it reads
    // the new values in a new epoch, so that a peer that has yet to make that write does not wait for this backward.
    const bool follows_a_write = std::exchange(epochs_.is_written_by_all, false);
    const auto writes = rank_state().writes_by_all;
    const bool reads_anew = std::exchange(epochs_.writes_seen, writes) != writes && meets();
    if (follows_a_write || reads_anew) ++epochs_.backwards_after_writes;
    begin_read();
    const bool is_stale = (follows_a_write && epochs_.counts_writes) || reads_anew;
    const bool gathers_again = policy.unshard_in_backward || params_->shares_memory();
    if (is_stale && gathers_again && !pins.are_there()) {
      reshard();
      epochs_.has_to_meet = meets();  // the ranks meet before this backward reads, so that it sees their writes
    }
    for (auto& slot : slots()) {
      if (auto tensor = slot.tensor(); tensor.defined())
        slot.parked = std::exchange(tensor.mutable_grad(), at::Tensor());
      auto& bucket = buckets_[slot.place.bucket];
      if (expects(slot)) {
        slot.missing_from = GradientSource::kTask;
        ++bucket.missing;
        expects_gradients_ = true;
      } else if (may_recompute && slot.was_read_unrecorded && slot.requires_grad()) {
        slot.missing_from = GradientSource::kInside;
        ++bucket.missing_inside;
      }
    }
  }
  tasks_.push_back(task);
}

// ---- Gradients arrive

void ParamGroup::add_gradient(size_t index, at::Tensor gradient, bool from_inside) {
  auto& slot = slots()[index];
  slot.waits = true;
  if (slot.missing_from == (from_inside ? GradientSource::kInside : GradientSource::kTask)) {
    slot.missing_from = GradientSource::kNone;
    auto& bucket = buckets_[slot.place.bucket];
    --(from_inside ? bucket.missing_inside : bucket.missing);
  }
  if (!rank_state().has_data) return;
  if (gradient.requires_grad()) {
    TORCH_WARN_ONCE(where("backward"), "with create_graph = true the gradient of parameter '", slot.name(),
                    "' in .grad is not part of a graph. For a penalty on gradients of parameters, use "
                    "torch::autograd::grad(..., create_graph) in the forward scope.");
    gradient = gradient.detach().clone();
  }
  if (auto sum = slot.arrived.take(); sum.defined()) {
    // In a low precision the sum would lose many small gradients.
    const auto dtype = slot.rows_tensor.scalar_type();
    if (sum.scalar_type() != dtype) slot.charge = charge_of(sum = sum.to(dtype));
    return slot.arrived.put(sum.add_(gradient));
  }
  if (gradient.is_sparse()) gradient = gradient.to_dense();
  slot.charge = charge_of(gradient);
  slot.arrived.put(std::move(gradient));
}

memory::Charge ParamGroup::charge_of(const at::Tensor& gradient) const {
  return {account_, memory::ByteClass::kGradient, static_cast<int64_t>(gradient.nbytes())};
}

// ---- Gradients are reduced

void ParamGroup::start_reduction(size_t index) {
  auto& bucket = buckets_[index];
  finish_reduction(bucket);
  if (!is_in_backward()) return;  // another thread called reset_iter_state() while this thread waited
  const OwnOperators own_operators;
  bucket.is_begun = true;
  auto subject = name_;
  if (buckets_.size() > 1) subject += str_cat(" (bucket ", index + 1, " of ", buckets_.size(), ')');
  const Span reducing(rank_state().timeline, "reduce", subject);
  auto tag = this->tag(subject);
  // With replicas the ranks compare how often rows were written. Without replicas they compare how often the group was
  // gathered before the backward, because gathers in shared memory are not collectives and have compared nothing.
  if (placement().replicas() == 1)
    tag.count = {gathers_before_backward_, "gathers of the group before the backward"};
  else
    tag.count.number = writes_.total();
  placement().pass_on_failure_of("backward", [&] {
    const auto& planes = params_->buckets()[index];
    auto kept = std::exchange(bucket.partial_sum, {});
    Reduction reduction{.joined = kept.reductions};
    for (const size_t plane : planes) {
      const auto run = params_->slots_in(plane);
      const bool trains = kept.rows.contains(plane) || std::ranges::any_of(run, [](const ParamSlot& slot) {
                            return slot.requires_grad() || slot.waits;
                          });
      if (trains) reduction.planes.push_back({plane, flats()[plane].allocate_gradient(flats()[plane].reduced_form())});
      reduction.votes.resize(reduction.votes.size() + run.size());
      // The factor depends on all planes of the bucket, also on those that have no gradients now, so that kept sums of
      // earlier reductions have the same factor.
      reduction.factor =
          std::min(reduction.factor, factor_before_sum(flats()[plane].reduced_form().dtype, placement()));
    }
    std::vector<std::vector<Piece>> gradients;
    for (const auto& plane : reduction.planes) gradients.push_back(take_gradients(plane, kept, reduction));
    if (!gradients.empty()) {
      reduction.start(placement(), policy.reduction, rank_state().share_with_data, std::move(gradients),
                      std::move(tag));
      bucket.in_flight = std::move(reduction);
    }
  });
  ++reductions;
  fault_point("gradients reducing");
}

// Takes the whole gradients of one plane's parameters out of their slots, and the kept sums of this rank's rows. It
// copies a gradient only if the reduction needs another factor, dtype or order in memory.
std::vector<Piece> ParamGroup::take_gradients(const ReducedPlane& plane, PartialSum& kept, Reduction& taken) {
  const auto dtype = plane.rows.form.dtype;
  const auto slice = kept.rows[plane.flat].take();
  if (slice.defined()) memory::note_use(slice);
  const int64_t begin_of_slice = placement().shard().rank() * flats()[plane.flat].plane().slice_numel;
  std::vector<Piece> pieces;
  const auto add = [&](int64_t begin, const at::Tensor& values) {
    if (values.defined() && values.numel() > 0) pieces.push_back({begin, values});
  };
  for (auto& slot : params_->slots_in(plane.flat)) {
    auto gradient = slot.arrived.take();
    const size_t number = slot.place.number;
    const bool was_kept = kept.reductions > 0 && kept.votes[number] != 0;
    taken.votes[number] = gradient.defined() || was_kept;
    taken.lacks_gradients |= taken.votes[number] == 0;
    slot.waits = false;
    if (gradient.defined()) {
      if (taken.factor != 1.0) gradient = gradient.mul(taken.factor);  // not in place: others may share the gradient
      if (gradient.scalar_type() != dtype) slot.charge = charge_of(gradient = gradient.to(dtype));
      taken.charges.push_back(std::move(slot.charge));
      gradient = slot.flat_in_memory_order(gradient);
    }
    at::Tensor rows;
    if (was_kept && slot.rows_numel() > 0)
      rows = slice.narrow(0, slot.offset_of_rows() - begin_of_slice, slot.rows_numel());
    at::Tensor behind_rows;
    if (gradient.defined() && rows.defined()) {  // the sum goes into `rows`, because others may share the gradient
      const int64_t before = slot.offset_of_rows() - slot.offset(), end = before + rows.numel();
      rows.add_(gradient.narrow(0, before, rows.numel()));
      behind_rows = gradient.narrow(0, end, gradient.numel() - end);
      gradient = gradient.narrow(0, 0, before);
    }
    add(slot.offset(), gradient);
    add(slot.offset_of_rows(), rows);
    add(slot.offset_of_rows() + slot.rows_numel(), behind_rows);
  }
  return pieces;
}

void ParamGroup::finish_reductions() {
  for (auto& bucket : buckets_) finish_reduction(bucket);
  if (policy.is_last_backward) call_post_accumulate_grad_hook();
}

// While this thread waits, other threads may finish the same reduction or drop it.
void ParamGroup::finish_reduction(Bucket& bucket) {
  const OwnOperators own_operators;
  while (bucket.in_flight) {
    const auto works = bucket.in_flight->works;
    const auto is_under_way = [&] { return bucket.in_flight && bucket.in_flight->works == works; };
    const c10::OptionalStreamGuard guard(flats()[bucket.in_flight->planes.front().flat].stream_of_results());
    try {
      const auto waiting = span("wait for reduction");
      for (const auto& work : works) rank_state().wait(*work);
    } catch (...) {
      if (is_under_way()) {
        bucket.in_flight.reset();
        placement().pass_on_failure("backward");
      }
      throw;
    }
    if (is_under_way()) begin_landing(bucket, *std::exchange(bucket.in_flight, std::nullopt));
    fault_point("gradients reduced");
  }
}

void ParamGroup::begin_landing(Bucket& bucket, Reduction reduced) {
  reduced.charges.clear();
  auto votes = reduced.votes_of_all();
  if (reduced.is_within_replica) {
    auto& kept = bucket.partial_sum;
    kept.reductions = reduced.joined + 1;
    kept.votes = std::move(votes);
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
    if (const auto hook = policy.reduction.hook) {  // a copy, because the hook may set another hook
      const UsersOperators users_operators;
      hook(plane.rows.tensor());
    }
    auto& flat = flats()[plane.flat];
    auto slice = plane.rows;
    if (flat.lands_elsewhere()) {
      slice = flat.allocate_gradient(flat.rows().form);
      flat.land(plane.rows.tensor(), slice);
    }
    landings_.push_back({{plane.flat, std::move(slice)}, votes});
  }
  // Gradients that are copied to the host are added when the backward closes, so the host waits once for all copies.
  if (!is_in_backward() || !flats()[reduced.planes.front().flat].is_on_host()) finish_landing();
}

// ---- Reduced gradients are added to the rows' gradients

void ParamGroup::finish_landing() {
  if (landings_.empty()) return;
  const OwnOperators own_operators;
  for (auto& flat : flats()) flat.finish_landing();
  if (!params_->is_on_cpu()) placement().progress();  // throws if a collective was aborted
  for (const auto& [plane, votes] : std::exchange(landings_, {}))
    for (auto& slot : params_->slots_in(plane.flat))
      if (votes[slot.place.number] != 0) add_to_rows(slot, params_->rows_of_slice(slot, plane.rows));
}

// While a backward is open, the rows' gradient is parked in the slot. Otherwise it is in `.grad`.
void ParamGroup::add_to_rows(ParamSlot& slot, at::Tensor gradient) {
  const auto parameter = slot.tensor();
  if (!is_in_backward() && !parameter.defined()) return;
  auto& sum = is_in_backward() ? slot.parked : parameter.mutable_grad();
  if (!sum.defined()) {
    params_->register_gradient(slot, gradient);
    sum = std::move(gradient);
  } else if (sum.sizes() == gradient.sizes()) {
    sum.add_(gradient);
    memory::note_use(sum);
    memory::note_use(gradient);
  } else {
    error_ =
        str_cat("parameter '", slot.name(), "' already had a gradient of different sizes: expected ", gradient.sizes(),
                ", found ", sum.sizes(), ". Assign a gradient of the rows' sizes, or call zero_grad() before backward");
  }
}

// Calls the hook, during a backward, if gradients were reduced since its last call, no gradient waits for a reduction,
// and no other graph task has entered the group.
void ParamGroup::call_post_accumulate_grad_hook() {
  const auto is_reduced = [](const Bucket& bucket) { return bucket.is_begun && !bucket.in_flight; };
  const bool is_complete = has_news_ && tasks_.size() == 1 &&
                           std::ranges::none_of(slots(), &ParamSlot::waits) &&
                           std::ranges::all_of(buckets_, is_reduced);
  if (!policy.post_accumulate_grad_hook || !is_complete) return;
  const auto hook = policy.post_accumulate_grad_hook;  // a copy, because the hook may set another hook
  finish_landing();
  const int depth = std::exchange(depth_, 0);
  for (auto& slot : slots()) slot.show_rows();
  swap_parked_gradients();
  end_read();
  is_in_hook_ = true;
  {
    const auto go_back = c10::make_scope_exit([&] {
      is_in_hook_ = false;
      swap_parked_gradients();
      depth_ = depth;
      for (auto& slot : slots()) slot.show_whole();
    });
    std::vector<at::Tensor> parameters;
    for (const auto& slot : slots())
      if (auto parameter = slot.tensor(); parameter.defined() && parameter.grad().defined())
        parameters.push_back(std::move(parameter));
    const UsersOperators users_operators;
    if (!parameters.empty()) hook(parameters);
  }
  is_handed_out_ = true;
  has_news_ = false;
  if (rank_state().reads.current == id_) rank_state().reads.current = 0;
}

// Exchanges the parked gradients with `.grad`: puts the rows' gradients into `.grad`, or back into the slots.
void ParamGroup::swap_parked_gradients() {
  for (auto& slot : slots()) {
    if (slot.parked.defined()) memory::note_use(slot.parked);  // the hook uses the gradient on the current stream
    if (auto tensor = slot.tensor(); tensor.defined()) std::swap(slot.parked, tensor.mutable_grad());
  }
}

// ---- The backward closes

std::string ParamGroup::leave_backward(int task) {
  if (std::erase(tasks_, task) == 0 || !tasks_.empty()) return {};
  close_backward();
  return std::exchange(error_, {});
}

void ParamGroup::close_backward() {
  has_news_ = is_handed_out_ = expects_gradients_ = false;
  for (auto& bucket : buckets_) {
    bucket.is_begun = false;
    bucket.missing = bucket.missing_inside = 0;
  }
  for (auto& slot : slots()) {
    slot.missing_from = GradientSource::kNone;
    auto gradient = std::exchange(slot.parked, at::Tensor());
    if (gradient.defined()) memory::note_use(gradient);  // the user reads `.grad` on the current stream
    if (auto tensor = slot.tensor(); tensor.defined()) tensor.mutable_grad() = std::move(gradient);
  }
}

// ---- Rows are written

void ParamGroup::begin_write() {
  if (epochs_.is_open && epochs_.reads)
    require(false, where("write"), "rows of '", name_,
            "' cannot be written while another thread has a forward scope or a backward open. Threads that train the "
            "same model must take turns: write when the other thread's backward has ended");
  end_read();
}

bool ParamGroup::wait_to_write() {
  if (params_->shared_buffers.empty()) return false;
  begin_write();
  const uint64_t last_epoch = epoch();
  if (epochs_.written_in_epoch == last_epoch) return false;
  const auto waiting = span("wait to write");
  placement().pass_on_failure_of("write", [&] {
    const RankLock::ScopedRelease others_go_on(rank_state().mutex);
    for (auto* rows : params_->shared_buffers) rows->begin_write(last_epoch);
  });
  epochs_.written_in_epoch = last_epoch;
  return true;
}

void ParamGroup::prepare_write(WriteKind kind, std::optional<size_t> slot) {
  auto& rank = rank_state();
  // progress() throws if a collective was aborted: the optimizer would update the rows with incomplete sums.
  if (!params_->is_on_cpu()) placement().progress();
  const bool is_by_all = kind == WriteKind::kEveryRank && epochs_.counts_writes;
  if (is_by_all)
    for (const auto& [id, group] : std::exchange(rank.readers_at_rest, {}))
      if (!group->epochs_.is_open) group->end_read();
  while (wait_to_write()) {
  }
  rank.host_copies->wait();  // copies of these rows may be under way
  epochs_.is_written_by_all |= kind == WriteKind::kEveryRank;
  if (is_by_all) {
    writes_.note(slot);
    ++rank.writes_by_all;
  }
  note_write();
}

void ParamGroup::note_write() {
  ++version_;
  rows_written_ = nullptr;
  if (policy.free_when_written && !is_inside() && !pins.are_there()) reshard();
}

}  // namespace fsdp::runtime
