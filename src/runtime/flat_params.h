#pragma once
/// \file
/// The parameters of a group whose rows have one form, and whose whole values have one: a flat shard for ever, a flat
/// whole buffer for a while, and the steps from the one to the other.

#include <fsdp/group_collectives.h>
#include <fsdp/process_group.h>

#include <memory>
#include <optional>
#include <string>

#include "layout/row_layout.h"
#include "memory/disk_store.h"
#include "memory/flat_part.h"
#include "memory/reused_block.h"
#include "runtime/host_rows.h"
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
  FlatParams(const FlatForms& forms, layout::RowLayout layout, int rank, std::shared_ptr<memory::ByteAccount> account);
  /// The shard, its gradients and, of `trains`, two states of its size will lie in a file in `folder`, which gets the
  /// room for them. Before `allocate_shard`, which then gets no shared memory; on the CPU. Throws Error.
  void keep_on_disk(const std::string& folder, bool trains);
  bool is_on_disk() const { return disk_.has_value(); }
  /// Where the shard and its gradients are if they are not beside whole values: then their form is of the CPU. Before
  /// `allocate_shard`, which then gets no shared memory.
  void keep_on_host(bool is_pinned, std::shared_ptr<memory::HostCopies> copies) {
    host_.emplace(whole_.form.device, is_pinned, std::move(copies), account_);
  }
  bool is_on_host() const { return host_.has_value(); }
  /// Makes the shard. `shared`: memory for the whole buffer that every rank sees; `on_host`: that the ranks of this
  /// host see; null where there is none. Once.
  void allocate_shard(std::shared_ptr<SharedBuffer> shared, std::shared_ptr<HostBuffer> on_host = nullptr);

  /// Whole values that go leave their memory to the next ones.
  void keep_whole_memory() { keeps_whole_memory_ = true; }

  const layout::RowLayout& layout() const { return layout_; }
  /// The flat shard: this rank's slice.
  const memory::FlatPart& rows() const { return rows_; }
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

  /// Memory for this rank's slice of the gradients, in the form in which they are reduced.
  memory::FlatPart allocate_reduced();
  const memory::Form& reduced_form() const { return reduced_form_; }
  /// The same in the form of the rows; where both are one, what was reduced is the rows' gradient.
  memory::FlatPart allocate_gradient();
  bool lands_elsewhere() const { return reduced_form_ != rows_.form; }
  /// The stream on which reductions are waited for and landed; none: the caller's.
  std::optional<c10::Stream> stream_of_results() const;
  /// Puts what was reduced into the part of an `allocate_gradient` of as many elements, which has it after
  /// `finish_landing`.
  void land(const at::Tensor& reduced, const memory::FlatPart& rows);
  void finish_landing();
  void drop_landing();
  /// Memory of any content for optimizer state of the rows.
  std::shared_ptr<memory::FlatBuffer> allocate_state(size_t bytes);

 private:
  bool has_one_form() const { return rows_.form == whole_.form; }
  bool rows_lie_in_whole() const { return shared_ && has_one_form(); }
  memory::FlatPart own_slice(const std::shared_ptr<memory::FlatBuffer>& whole) const;
  at::Tensor slice_to_gather();
  std::shared_ptr<memory::FlatBuffer> held_on_host();
  void allocate_copy();
  std::shared_ptr<memory::FlatBuffer> allocate_rows();
  memory::FlatPart gradient_in(const memory::Form& form, memory::ReusedBlock& memory);

  layout::RowLayout layout_;
  int rank_;
  std::shared_ptr<memory::ByteAccount> account_;
  memory::FlatPart rows_, whole_;
  memory::Form reduced_form_;
  SecondShard second_;
  std::shared_ptr<SharedBuffer> shared_;
  std::shared_ptr<memory::FlatBuffer> shared_whole_;  // the same memory
  std::shared_ptr<HostBuffer> on_host_;
  std::shared_ptr<memory::FlatBuffer> kept_;  // on the host, in place of a second shard
  std::optional<memory::DiskStore> disk_;
  std::optional<HostRows> host_;
  memory::ReusedBlock gradient_memory_{rows_.form.device}, reduced_memory_{reduced_form_.device},
      whole_memory_{whole_.form.device};
  bool keeps_whole_memory_ = false;
  std::shared_ptr<Work> gather_, gathered_;  // under way; waited for, as long as its result is there
};

}  // namespace fsdp::runtime
