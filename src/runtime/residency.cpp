#include "runtime/residency.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "comm/core/fault_point.h"

namespace fsdp::runtime {

void Residency::publish() {
  if (published_version_ == row_lock_.version()) return;
  for (auto& flat : params_.flats()) flat.publish();
  published_version_ = row_lock_.version();
}

void Residency::start_gather(const std::string& call) {
  if (state_ != GatherState::kSharded) return;
  auto& flats = params_.flats();
  const bool within = has_second_shard();
  if (!within)
    for (auto& flat : flats) flat.drop_second_shard();
  const auto is_there = [](const FlatParams& flat) { return flat.shares_memory() || flat.keeps_whole(); };
  const bool moves = !std::ranges::all_of(flats, is_there);
  const c10::OptionalStreamGuard guard(within ? std::nullopt : stream_of_gather());
  try {
    // All memory first: a rank that has too little of it has not begun what its peers would wait for.
    for (auto& flat : flats) flat.allocate_whole(/*fills_alone=*/within || custom_all_gather);
    if (within)
      gather_second_shards(call);
    else
      gather_rows(moves, call);
  } catch (...) {
    abandon_gather();
    group_.placement.pass_on_failure("gather");
    throw;
  }
  state_ = GatherState::kGathering;
  ++gather_number_;
  fault_point("group gathering");
  gathers_ += moves;
  gathers_within_ += within && moves;
  gathers_in_place_ += params_.shares_memory() ? 1 : 0;
  if (!params_.rows_are_whole()) group_.rank_state->residents.note(group_.id);
}

void Residency::gather_after(std::shared_ptr<const c10::Event> event) {
  const bool has_streams =
      std::ranges::any_of(params_.flats(), [](const FlatParams& flat) { return !flat.whole().form.device.is_cpu(); });
  rows_written_ = has_streams ? std::move(event) : nullptr;
  version_at_event_ = row_lock_.version();
}

// Another stream than the current one where a gather comes after the event alone, or after nothing, since the rows are
// the host's; whole parameters have their memory there. Memory of the current stream may still be in use by what that
// was given. Second shards come after the gather that they were taken from, which the current stream knows.
std::optional<c10::Stream> Residency::stream_of_gather() {
  if (version_at_event_ != row_lock_.version()) rows_written_ = nullptr;
  const bool is_on_host =
      std::ranges::any_of(params_.flats(), [](const FlatParams& flat) { return flat.is_on_host(); });
  if (!rows_written_ && !is_on_host) return std::nullopt;
  auto& stream = group_.rank_state->gather_stream;
  const auto device = params_.flats().front().whole().form.device;
  if (!stream || stream->device() != device)
    stream = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  if (rows_written_) rows_written_->block(*stream);
  return stream;
}

// Starts one collective for the planes of each device; `plane_of` gives none for one that need not move.
template <class PlaneOf>
void Residency::start(Communicator& communicator, const Tag& tag, const AllGather& with, const PlaneOf& plane_of) {
  for (const auto& planes : params_.planes_by_device()) {
    std::vector<GatherPlane> moving;
    for (const size_t number : planes)
      if (auto plane = plane_of(params_.flats()[number])) moving.push_back(std::move(*plane));
    if (moving.empty()) continue;
    gathers_in_flight_.push_back(with ? with(communicator, std::move(moving), tag)
                                      : communicator.all_gather(std::move(moving), tag));
  }
}

void Residency::gather_rows(bool moves, const std::string& call) {
  const bool meets = row_lock_.has_to_meet();
  publish();
  version_in_copy_ = row_lock_.version();
  writes_told_ = moves || meets ? row_lock_.writes().take() : 0;
  const auto tag = group_.tag_of(call, group_.name, writes_told_);
  auto& ranks = group_.placement.shard().communicator();
  start(ranks, tag, custom_all_gather,
        [](FlatParams& flat) { return flat.shares_memory() ? std::nullopt : std::optional(flat.plane_to_gather()); });
  if (meets) gathers_in_flight_.push_back(ranks.barrier(tag));
}

// What the ranks tell each other of writes waits for a gather of rows, in which all take part.
void Residency::gather_second_shards(const std::string& call) {
  start(group_.placement.within()->communicator(), group_.tag_of(call, group_.name), {}, [](FlatParams& flat) {
    return flat.keeps_whole() ? std::nullopt : std::optional(flat.plane_to_gather_among());
  });
}

bool Residency::has_second_shard() {
  const auto& flats = params_.flats();
  return version_in_copy_ == row_lock_.version() && !flats.empty() &&
         std::ranges::all_of(flats, &FlatParams::has_second_shard);
}

void Residency::reshard_within() {
  if (state_ != GatherState::kWhole || !group_.placement.within()) return free_whole();
  order_read();
  if (!has_second_shard())
    for (auto& flat : params_.flats()) flat.keep_second_shard(*group_.placement.within());
  params_.detach_whole();
  drop_whole_buffers();
}

// While this thread waits, others may finish the same gather, or free the group.
void Residency::finish_gather(const std::string& call) {
  const auto unshard = state_ == GatherState::kWhole ? Span() : span("unshard");
  while (state_ != GatherState::kWhole) {
    start_gather(call);
    const uint64_t number = gather_number_;
    const auto is_under_way = [&] { return state_ == GatherState::kGathering && gather_number_ == number; };
    const auto gathers = gathers_in_flight_;
    try {
      const auto waiting = gathers.empty() ? Span() : span("wait for all_gather");
      for (const auto& gather : gathers) group_.rank_state->wait(*gather);
    } catch (...) {
      if (is_under_way()) {
        abandon_gather();
        group_.placement.pass_on_failure("gather");
      }
      throw;
    }
    if (is_under_way()) become_whole();
  }
  order_read();
}

// The calling thread's current stream reads whole values from now on: after the gather, also if another stream waited
// for it.
void Residency::order_read() {
  for (auto& flat : params_.flats()) {
    if (!flat.note_reader()) continue;
    for (const auto& gather : gathered_) gather->wait();
    flat.order_read();
  }
}

Span Residency::span(std::string_view name) const {
  return {group_.rank_state->timeline, Track::kCompute, name, group_.name};
}

void Residency::become_whole() {
  gathered_ = std::exchange(gathers_in_flight_, {});
  for (auto& flat : params_.flats()) flat.mark_cold();
  state_ = GatherState::kWhole;
  writes_told_ = 0;
  row_lock_.note_met();
  params_.attach_whole();
  fault_point("group whole");
}

// kSharded (half way), kGathering -> kSharded: as if it had not been tried.
void Residency::abandon_gather() {
  row_lock_.writes().give_back(std::exchange(writes_told_, 0));
  drop_whole_buffers();
}

void Residency::free_whole() {
  while (wait_for_operators()) {
  }
  if (is_pinned()) {
    version_in_copy_ = -1;  // old: the next scope drops it
    return;
  }
  for (auto& flat : params_.flats()) flat.drop_second_shard();
  if (state_ == GatherState::kSharded) return;
  params_.detach_whole();
  drop_whole_buffers();
}

void Residency::make_own() {
  params_.detach_whole();
  try {
    for (auto& flat : params_.flats())
      if (flat.is_seen_by_others()) flat.copy_whole();
  } catch (...) {
    drop_whole_buffers();
    throw;
  }
  params_.attach_whole();
}

void Residency::offload_whole() {
  if (params_.is_on_cpu()) return;
  params_.detach_whole();
  order_read();
  for (auto& flat : params_.flats()) flat.offload_whole();
  params_.attach_whole();
}

void Residency::drop_whole_buffers() {
  gathers_in_flight_.clear();
  gathered_.clear();
  for (auto& flat : params_.flats()) flat.free_whole();
  state_ = GatherState::kSharded;
  fault_point("group sharded");
  unshard_was_asked = false;
  group_.rank_state->residents.forget(group_.id);
}

}  // namespace fsdp::runtime
