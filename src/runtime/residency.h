#pragma once
/// \file
/// Whether a group's unsharded parameters are in memory, and how they get there and leave.

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <fsdp/group_collectives.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/group_identity.h"
#include "runtime/row_lock.h"
#include "runtime/sharded_params.h"

namespace fsdp::runtime {

enum class GatherState : uint8_t { kSharded, kGathering, kWhole };

/// Thread safety: under the rank's lock.
class Residency {
 public:
  Residency(const GroupIdentity& group, ShardedParams& params, RowLock& row_lock)
      : group_(group), params_(params), row_lock_(row_lock) {}

  GatherState state() const { return state_; }
  /// Before the ranks meet to read: what they see of this rank's rows is as the last write left these. Only while this
  /// rank may write rows.
  void publish();
  /// kSharded -> kGathering; in other states it does nothing, and if it throws the state is kSharded. `call` is the
  /// user's call that asked for the parameters, if there is one.
  void start_gather(const std::string& call = {});
  /// kSharded, kGathering -> kWhole, for the current stream to read; if it throws: kSharded.
  void finish_gather(const std::string& call = {});
  /// -> kSharded, after waiting for operators of other threads that compute with the parameters. A thread that is
  /// inside an operator itself does not wait; the parameters then stay until the next scope opens.
  void free_whole();
  void reshard_within();  // kWhole -> kSharded, with a second shard among the placement's neighbours, if it has any
  void make_own();        // kWhole -> kWhole, in memory that only this rank sees; if it throws: kSharded
  void offload_whole();   // kWhole: to host memory
  /// Until rows are written again, gathers of them come after `event` instead of after what the current stream was
  /// given.
  void gather_after(std::shared_ptr<const c10::Event> event);
  /// Drops a whole copy that is older than the last write to the rows.
  void drop_stale_copy() {
    if (version_in_copy_ != row_lock_.version()) free_whole();
  }
  /// Gathers that moved data. May be read without the lock.
  int64_t gathers() const { return gathers_; }
  /// Those among neighbours.
  int64_t gathers_within() const { return gathers_within_; }

  /// Gathers that moved nothing, because ranks share memory. Ranks count them alike, as if they had met for them.
  uint32_t gathers_in_place() const { return gathers_in_place_; }
  void forget_gathers_in_place() { gathers_in_place_ = 0; }

  /// Whether any operator computes with the unsharded parameters at the moment.
  bool is_pinned() const { return group_.pins->are_there(); }
  /// Waits for the operators of other threads. Returns whether it let the lock go, in which case other threads may have
  /// changed the state.
  bool wait_for_operators() { return group_.pins->wait_until_gone(group_.rank_state->mutex); }

  /// In place of the communicator's own; none: that one.
  AllGather custom_all_gather;
  /// The user brought whole parameters to memory, where they stay until they are freed.
  bool unshard_was_asked = false;

 private:
  std::optional<c10::Stream> stream_of_gather();
  void become_whole();
  Span span(std::string_view name) const;
  void abandon_gather();
  void gather_rows(bool moves, const std::string& call);
  void gather_second_shards(const std::string& call);
  template <class PlaneOf>
  void start(Communicator& communicator, const Tag& tag, const AllGather& with, const PlaneOf& plane_of);
  void order_read();
  bool has_second_shard();
  void drop_whole_buffers();

  const GroupIdentity& group_;
  ShardedParams& params_;
  RowLock& row_lock_;
  GatherState state_ = GatherState::kSharded;
  uint64_t gather_number_ = 0;                                       // of the last one that was started
  std::vector<std::shared_ptr<Work>> gathers_in_flight_, gathered_;  // the latter as long as their results are there
  int64_t version_in_copy_ = 0;
  std::optional<int64_t> published_version_;
  std::shared_ptr<const c10::Event> rows_written_;  // null: in the order of the current stream
  int64_t version_at_event_ = 0;
  uint32_t writes_told_ = 0;  // by the gather in flight
  uint32_t gathers_in_place_ = 0;
  std::atomic<int64_t> gathers_ = 0, gathers_within_ = 0;
};

}  // namespace fsdp::runtime
