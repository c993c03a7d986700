#pragma once
/// \file
/// One plane of a group, whose rows have one form, and whose whole values have one: for ever a flat shard and what
/// training needs beside it, for a while a flat whole buffer, and the steps from the one to the other.

#include <fsdp/communicator.h>
#include <fsdp/process_group.h>

#include <memory>
#include <optional>
#include <string>

#include "layout/planes.h"
#include "memory/block.h"
#include "memory/flat_buffer.h"
#include "runtime/host_rows.h"

namespace fsdp::runtime {

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
///   flat shard itself travels;
/// - the slices become whole: they are gathered, on several hosts into memory that the ranks of a host share; or they
///   lie in memory that all ranks share, where they need not move. With one form the flat shard is a slice of that
///   memory. With two, each rank casts the rows that were written into its slice (`publish`) before the ranks meet;
/// - whole gradients become rows' gradients: they are cast to the form in which they are reduced, and the sum of this
///   rank's slice lands in the form of the rows.
///
/// Where rows are in host memory the first and the last step cross the bus (HostRows).
///
/// Thread safety: under the rank's lock.
class FlatParams {
 public:
  FlatParams(const FlatForms& forms, layout::Plane plane, int rank, std::shared_ptr<memory::ByteAccount> account);
  /// Rows, their gradients and, of `trains`, two states will lie in a file in `folder`, made here. Throws Error.
  void keep_on_disk(const std::string& folder, bool trains);
  bool is_on_disk() const { return disk_.has_value(); }
  /// Set before the rows have memory, where whole values are on an accelerator and rows and gradients on the CPU.
  std::optional<HostRows> host;
  bool keeps_whole_memory = false;  ///< whole values that go leave their memory to the next ones

  /// Makes the shard, once. `shared`: memory that every rank sees, with room for the whole buffer from `first_byte` on;
  /// `on_host`: memory that the ranks of this host see; null where there is none.
  void allocate_shard(std::shared_ptr<SharedBuffer> shared, size_t first_byte = 0,
                      std::shared_ptr<HostBuffer> on_host = nullptr);

  const layout::Plane& plane() const { return plane_; }
  const memory::FlatPart& rows() const { return rows_; }
  /// The whole buffer, without memory while it is away.
  const memory::FlatPart& whole() const { return whole_; }
  /// Whether whole values lie in memory that all ranks share.
  bool shares_memory() const { return shared_whole_ != nullptr; }
  /// Whether other ranks read the whole values of this one.
  bool is_seen_by_others() const { return shared_whole_ || on_host_; }

  /// What others see of the rows, and what travels, is as the rows are. Nothing where rows themselves are that.
  void publish();
  /// Makes the whole buffer. `fills_alone`: the ranks of this host do not gather it together.
  void allocate_whole(bool fills_alone = false);
  /// What an all_gather over the shard axis fills the whole buffer from, where ranks do not share its memory.
  GatherPlane plane_to_gather();
  /// From forward to backward each of `neighbours` keeps a slice of the whole values (hpZ of ZeRO++, arXiv:2306.10209);
  /// those of one host keep the memory that they share. The current stream may read the whole buffer.
  void keep_second_shard(const ProcessGroup& neighbours);
  bool has_second_shard() const { return kept_ || second_.buffer; }
  bool keeps_whole() const { return kept_ != nullptr; }
  void drop_second_shard();
  /// What an all_gather among the neighbours fills the whole buffer from, unless it keeps all whole values.
  GatherPlane plane_to_gather_among() const { return {whole_.tensor(), second_.tensor()}; }
  /// Whole values, which the current stream may read, become a copy that only this rank sees.
  void copy_whole();
  /// The calling thread's current stream reads the whole buffer from now on. Returns whether it did not before.
  bool note_reader() { return whole_.buffer && whole_.buffer->note_use(); }
  void free_whole() { whole_.buffer.reset(); }

  memory::FlatPart allocate_reduced();
  const memory::Form& reduced_form() const { return reduced_form_; }
  /// The same in the form of the rows; where both are one, what was reduced is the rows' gradient.
  memory::FlatPart allocate_gradient();
  bool lands_elsewhere() const { return reduced_form_ != rows_.form; }
  /// Puts what was reduced into what `allocate_gradient` gave; see also `HostRows::finish_landing`.
  void land(const at::Tensor& reduced, const memory::FlatPart& rows);
  /// Memory of any content for optimizer state of the rows.
  std::shared_ptr<memory::FlatBuffer> allocate_state(size_t bytes);

 private:
  bool has_one_form() const { return rows_.form == whole_.form; }
  void allocate_rows();
  void copy_rows_to(const at::Tensor& slice);
  std::shared_ptr<memory::FlatBuffer> counted(c10::DataPtr data, size_t bytes, memory::ByteClass cls) const;
  std::shared_ptr<memory::FlatBuffer> kept_elsewhere(size_t bytes);
  memory::FlatPart gradient_in(const memory::Form& form, memory::BlockPool& memory);
  memory::FlatPart own_slice(const std::shared_ptr<memory::FlatBuffer>& whole) const;

  layout::Plane plane_;
  int rank_;
  std::shared_ptr<memory::ByteAccount> account_;
  memory::FlatPart rows_, whole_;
  memory::Form reduced_form_;
  std::optional<memory::BlockPool> disk_;
  memory::FlatPart second_{whole_.form};
  std::shared_ptr<memory::FlatBuffer> shared_whole_;  // in memory that all ranks share
  std::shared_ptr<HostBuffer> on_host_;
  std::shared_ptr<memory::FlatBuffer> kept_;  // on the host, in place of a second shard
  memory::BlockPool whole_memory_{whole_.form.device};
  memory::BlockPool gradient_memory_{rows_.form.device}, reduced_memory_{reduced_form_.device};
};

}  // namespace fsdp::runtime
