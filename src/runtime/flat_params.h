#pragma once
/// \file
/// One plane of a group: the permanent flat buffer of this rank's rows (the flat shard), the flat buffer of whole
/// values that comes and goes, and the copies between the two. All rows of a plane have one form (dtype and device),
/// and so do all its whole values.

#include <fsdp/communicator.h>
#include <fsdp/process_group.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "layout/planes.h"
#include "memory/block.h"
#include "memory/flat_buffer.h"
#include "runtime/host_rows.h"

namespace fsdp::runtime {

/// Dtypes and devices of one plane. Frozen parameters have planes of their own, so that each rank has an equal part of
/// what trains, and reductions contain nothing else.
struct FlatForms {
  memory::Form rows, whole;
  /// Form of gradients while they are summed over the ranks.
  memory::Form reduced = whole;
  bool is_frozen = false;

  bool operator==(const FlatForms&) const = default;
};

/// Note [Rows and whole]. Rows are the master values that optimizers and checkpoints use. Whole values are what
/// operators compute with. Rows and whole values each have a dtype and a device, and three steps lead from one to the
/// other:
///
/// - Each rank casts its rows to its slice of the whole buffer. If rows and whole values have the same form, the flat
///   shard itself is the slice.
/// - The ranks all-gather their slices into the whole buffer, which on several hosts lies in memory that the ranks of a
///   host share. If all ranks share memory, the slices already lie in the whole buffer and do not move: with one form
///   the flat shard is a slice of that buffer; with two forms each rank casts its written rows into its slice
///   (`publish`) before the ranks meet.
/// - Whole gradients are cast to the form in which they are reduced. The sum of this rank's slice is then cast to the
///   form of the rows and becomes their gradient.
///
/// If rows are in host memory, the first and the last step copy between host and device. Values are copied in the
/// narrower of the two dtypes. If the host has to cast rows first, it does so once after each write (`publish`), into
/// permanent memory.
///
/// Thread safety: the caller holds the rank's lock.
class FlatParams {
 public:
  FlatParams(const FlatForms& forms, layout::Plane plane, int rank, std::shared_ptr<memory::ByteAccount> account);
  /// Makes a file in `folder` with room for the rows and, if `trains`, for their gradients and two tensors of optimizer
  /// state. Rows, gradients and state that are allocated later lie in it. Throws Error if the disk has too little room.
  void keep_on_disk(const std::string& folder, bool trains);
  bool is_on_disk() const { return disk_.has_value(); }
  /// Keeps rows, gradients and optimizer state in host memory while whole values are on an accelerator. Must be called
  /// before the rows have memory.
  void keep_on_host(std::shared_ptr<HostCopies> copies, bool is_pinned);
  bool is_on_host() const { return copies_ != nullptr; }
  bool keeps_whole_memory = false;  ///< true if the next whole buffer reuses the memory of the one that was freed

  /// Allocates the flat shard, once. `shared` is memory that all ranks share, with room for the whole buffer from
  /// `first_byte` on; `on_host` is memory that the ranks of this host share. Either is null if there is none.
  void allocate_shard(std::shared_ptr<SharedBuffer> shared, size_t first_byte = 0,
                      std::shared_ptr<HostBuffer> on_host = nullptr);

  const layout::Plane& plane() const { return plane_; }
  const memory::FlatPart& rows() const { return rows_; }
  /// The whole buffer, which has no memory while the group is sharded.
  const memory::FlatPart& whole() const { return whole_; }
  /// Returns true if whole values lie in memory that all ranks share.
  bool shares_memory() const { return shared_whole_ != nullptr; }
  /// Returns true if other ranks can read the memory of this rank's whole values.
  bool is_seen_by_others() const { return shared_whole_ || on_host_; }

  /// Copies the rows, with a cast, into the buffer that other ranks read or that is copied to the device. Does nothing
  /// if that buffer is the rows' own memory.
  void publish();
  /// Allocates the whole buffer. If `fills_alone`, this rank fills it without the other ranks of its host, so it does
  /// not lie in memory that they share.
  void allocate_whole(bool fills_alone = false);
  /// Returns the input and the output of the all-gather over the shard axis, for ranks that do not share the memory of
  /// the whole buffer.
  GatherPlane plane_to_gather();
  /// Keeps a second shard: from forward to backward each of the ranks `neighbours` keeps a slice of the whole values
  /// (hpZ of ZeRO++, arXiv:2306.10209). If all of them are on this host, they keep the whole buffer that they share
  /// instead. The current stream must already wait for the gather.
  void keep_second_shard(const ProcessGroup& neighbours);
  bool has_second_shard() const { return kept_ || second_.buffer; }
  /// Returns true if the neighbours keep the whole buffer that they share, so that backward does not gather it.
  bool keeps_whole() const { return kept_ != nullptr; }
  void drop_second_shard();
  /// Returns the input and the output of the all-gather among the neighbours. Not for a plane that `keeps_whole`.
  GatherPlane plane_to_gather_among() const { return {whole_.tensor(), second_.tensor()}; }
  /// Replaces the whole buffer by a copy that only this rank sees. The current stream must already wait for the gather.
  void copy_whole();
  /// Notes that the calling thread's current stream reads the whole buffer. Returns true if this stream had not been
  /// noted before.
  bool note_reader() { return whole_.buffer && whole_.buffer->note_use(); }
  /// Makes the current stream wait until the rows have been copied from host memory.
  void order_read() const;
  void free_whole() { whole_.buffer.reset(); }

  /// The form of the output of a reduction.
  const memory::Form& reduced_form() const { return reduced_form_; }
  /// Allocates this rank's slice of the gradients in `reduced_form()` or in the form of the rows.
  memory::FlatPart allocate_gradient(const memory::Form& form);
  /// Returns false if `reduced_form()` is the form of the rows, so that the output of a reduction is the rows' gradient
  /// itself.
  bool lands_elsewhere() const { return reduced_form_ != rows_.form; }
  /// Returns the stream on which the output of a reduction is scaled and copied to host memory (see HostCopies);
  /// nothing if the rows are not in host memory.
  std::optional<c10::Stream> stream_of_results() const;
  /// Copies the output of a reduction to memory of `allocate_gradient`. If the rows are in host memory, the values are
  /// there only after `finish_landing`, which blocks the host. `drop_landing` forgets casts that are still to be made.
  void land(const at::Tensor& reduced, const memory::FlatPart& rows);
  void finish_landing();
  void drop_landing() { casts_.clear(); }
  /// Allocates uninitialised memory for optimizer state of the rows.
  std::shared_ptr<memory::FlatBuffer> allocate_state(size_t bytes);

 private:
  bool has_one_form() const { return rows_.form == whole_.form; }
  void copy_rows_to(const at::Tensor& slice);
  std::shared_ptr<memory::FlatBuffer> counted(c10::DataPtr data, size_t bytes, memory::ByteClass cls) const;
  std::shared_ptr<memory::FlatBuffer> kept_elsewhere(size_t bytes);
  memory::FlatPart allocate_on_host(c10::ScalarType dtype);
  memory::FlatPart own_slice(const std::shared_ptr<memory::FlatBuffer>& whole) const;

  layout::Plane plane_;
  int rank_;
  std::shared_ptr<memory::ByteAccount> account_;
  memory::FlatPart rows_, whole_;
  memory::Form reduced_form_;
  std::optional<memory::BlockPool> disk_;
  std::shared_ptr<HostCopies> copies_;
  bool is_pinned_ = false;
  std::optional<memory::FlatPart> narrow_;  // the rows in host memory in the narrower dtype, if they are cast there
  std::optional<c10::Event> brought_;       // the last copy of rows from host memory
  std::vector<std::pair<memory::FlatPart, memory::FlatPart>> casts_;  // sources and targets for finish_landing
  memory::FlatPart second_{whole_.form};
  std::shared_ptr<memory::FlatBuffer> shared_whole_;  // the whole buffer, if all ranks share its memory
  std::shared_ptr<HostBuffer> on_host_;
  std::shared_ptr<memory::FlatBuffer> kept_;  // the host's shared whole buffer, kept in place of a second shard
  memory::BlockPool whole_memory_{whole_.form.device};
  memory::BlockPool gradient_memory_{rows_.form.device}, reduced_memory_{reduced_form_.device};
};

}  // namespace fsdp::runtime
