#pragma once
/// \file
/// One plane of a group, whose rows have one form, and whose whole values have one: a flat shard for ever, a flat whole
/// buffer for a while, and the steps from the one to the other.

#include <fsdp/group_collectives.h>
#include <fsdp/process_group.h>

#include <memory>

#include "layout/planes.h"
#include "memory/flat_part.h"
#include "memory/reused_block.h"
#include "runtime/flat_shard.h"
#include "runtime/second_shard.h"

namespace fsdp::runtime {

/// What the elements of a flat parameter are, and where.
struct FlatForms {
  memory::Form rows, whole;
  /// Of gradients while they are summed over the ranks.
  memory::Form reduced = whole;

  bool operator==(const FlatForms&) const = default;
};

/// Note [Rows and whole]. Rows are master values: what optimizers and checkpoints know. Whole values are what operators
/// compute with. Each have a dtype and a device of their own, and these steps lead from the one to the other:
///
/// - rows become what travels: this rank's slice of the whole buffer, in its form. Where both forms are the same the
///   flat shard itself travels, and nothing is copied;
/// - the slices become whole: they are gathered, on several hosts into memory that the ranks of a host share, so that
///   each host has them once; or they lie in memory that all ranks share, where they need not move. With
///   one form the flat shard is a slice of that memory, so that who writes rows writes whole values. With two, each
///   rank casts the rows that were written into its slice (`publish`) before the ranks meet. It may do so whenever it
///   may write rows, see Note [Whose turn it is];
/// - whole gradients become rows' gradients: they are cast to the form in which they are reduced, and the sum of this
///   rank's slice lands in the form of the rows.
///
/// Where rows are in host memory the first and the last step cross the bus (HostRows).
///
/// Thread safety: under the rank's lock.
class FlatParams {
 public:
  /// Without memory as yet.
  FlatParams(const FlatForms& forms, layout::Plane plane, int rank, std::shared_ptr<memory::ByteAccount> account);
  /// Makes the shard. `shared`: memory for the whole buffer that every rank sees, null also where the shard is on disk
  /// or on the host; `on_host`: that the ranks of this host see; null where there is none. Once.
  void allocate_shard(std::shared_ptr<SharedBuffer> shared, std::shared_ptr<HostBuffer> on_host = nullptr);

  /// Whole values that go leave their memory to the next ones.
  void keep_whole_memory() { keeps_whole_memory_ = true; }

  const layout::Plane& plane() const { return plane_; }
  /// This rank's slice, with its gradients and its state.
  const FlatShard& shard() const { return shard_; }
  FlatShard& shard() { return shard_; }
  const memory::FlatPart& rows() const { return shard_.rows(); }
  /// The whole buffer, without memory while it is away.
  const memory::FlatPart& whole() const { return whole_; }
  /// Whether whole values lie in memory that all ranks share; whose turn it is there, null elsewhere.
  bool shares_memory() const { return shared_ != nullptr; }
  /// Whether other ranks read the whole values of this one.
  bool is_seen_by_others() const { return shared_ || on_host_; }
  SharedBuffer* shared() const { return shared_.get(); }

  /// What others see of the rows, and what travels, is as the rows are. Nothing where rows themselves are that.
  void publish();
  /// Makes the whole buffer, as yet without values unless ranks share memory. `fills_alone`: with what this rank's host
  /// does not gather together.
  void allocate_whole(bool fills_alone = false);
  /// Starts filling the whole buffer. Collective unless all ranks share its memory, where what was published is there.
  /// `with`: in place of the communicator's own all_gather.
  void start_gather(Communicator& communicator, Tag tag, const AllGather& with = {});
  /// Where ranks share memory: waiting for the gather is then waiting until every rank has started it. Collective.
  void start_meeting(Communicator& communicator, Tag tag);
  /// This rank keeps its part of what is whole among neighbours, for `start_gather_among`: with those of one host the
  /// memory that they share. Not where all ranks share memory.
  void keep_second_shard(const ProcessGroup& neighbours);
  bool has_second_shard() const { return kept_ || second_.is_there(); }
  /// Whether it has all whole values.
  bool keeps_whole() const { return kept_ != nullptr; }
  void drop_second_shard();
  /// As start_gather, from the neighbours' second shards; nobody is waited for where these have all values.
  void start_gather_among(Communicator& neighbours, Tag tag);
  /// Whole values that others see become a copy that only this rank sees.
  void copy_whole();
  /// Moves the whole buffer, which has been gathered, to host memory; the host waits for it.
  void offload_whole();
  /// The gather that was started; null if nobody is waited for.
  const std::shared_ptr<Work>& gather() const { return gather_; }
  /// After it was waited for.
  void end_gather();
  /// The calling thread's current stream reads the whole buffer from now on: after the gather, also if another stream
  /// waited for it.
  void order_read();
  void free_whole();

 private:
  bool has_one_form() const { return rows().form == whole_.form; }
  memory::FlatPart own_slice(const std::shared_ptr<memory::FlatBuffer>& whole) const;
  at::Tensor slice_to_gather();
  std::shared_ptr<memory::FlatBuffer> held_on_host();
  void allocate_copy();

  layout::Plane plane_;
  int rank_;
  std::shared_ptr<memory::ByteAccount> account_;
  FlatShard shard_;
  memory::FlatPart whole_;
  SecondShard second_;
  std::shared_ptr<SharedBuffer> shared_;
  std::shared_ptr<memory::FlatBuffer> shared_whole_;  // the same memory
  std::shared_ptr<HostBuffer> on_host_;
  std::shared_ptr<memory::FlatBuffer> kept_;  // on the host, in place of a second shard
  memory::ReusedBlock whole_memory_{whole_.form.device};
  bool keeps_whole_memory_ = false;
  std::shared_ptr<Work> gather_, gathered_;  // under way; waited for, as long as its result is there
};

}  // namespace fsdp::runtime
