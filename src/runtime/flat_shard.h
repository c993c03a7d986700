#pragma once
/// \file
/// What a rank keeps of a flat buffer for ever: its slice, and what training needs beside it, wherever they lie.

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "memory/disk_store.h"
#include "memory/flat_part.h"
#include "memory/reused_block.h"
#include "runtime/host_rows.h"

namespace fsdp::runtime {

/// Rows, their gradients and memory for their optimizer state: beside whole values, in host memory, or in a file. See
/// Note [Rows and whole].
///
/// Thread safety: under the rank's lock.
class FlatShard {
 public:
  /// `numel` elements of the form `rows`, as yet without memory; `reduced`: of gradients while they are summed.
  FlatShard(const memory::Form& rows, const memory::Form& reduced, int64_t numel,
            std::shared_ptr<memory::ByteAccount> account);

  /// The rows, their gradients and, of `trains`, two states of their size will lie in a file in `folder`, which gets
  /// the room for them. Before the rows have memory; on the CPU. Throws Error.
  void keep_on_disk(const std::string& folder, bool trains);
  bool is_on_disk() const { return disk_.has_value(); }
  /// Whole values are on `device`, and the rows and their gradients are not: then their form is of the CPU. Before the
  /// rows have memory.
  void keep_on_host(c10::Device device, bool is_pinned, std::shared_ptr<memory::HostCopies> copies);
  bool is_on_host() const { return host_.has_value(); }
  /// Takes memory for the rows, which are zero then.
  void allocate();
  /// The rows are a part of a buffer of others.
  void lie_in(memory::FlatPart slice) { rows_ = std::move(slice); }
  const memory::FlatPart& rows() const { return rows_; }

  /// What crosses the bus as `whole` are the rows as they are now. Nothing where they lie elsewhere.
  void publish(c10::ScalarType whole);
  /// Fills `slice`, this rank's part of the whole buffer, on the current stream.
  void copy_to(const at::Tensor& slice);
  /// What the current stream is given from now on comes after what `copy_to` was given last.
  void order_read() const;
  /// The rows were read, and are not for a while.
  void let_go();

  /// Memory for gradients, in the form in which they are reduced.
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
  std::shared_ptr<memory::FlatBuffer> on_disk(size_t bytes);
  memory::FlatPart gradient_in(const memory::Form& form, memory::ReusedBlock& memory);

  memory::FlatPart rows_;
  memory::Form reduced_form_;
  std::shared_ptr<memory::ByteAccount> account_;
  std::optional<memory::DiskStore> disk_;
  std::optional<HostRows> host_;
  memory::ReusedBlock gradient_memory_{rows_.form.device}, reduced_memory_{reduced_form_.device};
};

}  // namespace fsdp::runtime
