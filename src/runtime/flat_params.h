#pragma once
/// \file
/// The parameters of a group that have one dtype: a flat shard for ever, a flat whole buffer for a while.

#include <fsdp/communicator.h>

#include <memory>

#include "layout/row_layout.h"
#include "memory/flat_buffer.h"
#include "memory/reused_block.h"

namespace fsdp::runtime {

/// The flat shard is the all-gather's input and the optimizer's memory; the whole buffer is its output and what whole
/// parameters are parts of. Where ranks share memory the shard is a slice of the whole buffer and nothing moves.
/// Thread safety: under the rank's lock.
class FlatParams {
 public:
  /// Without memory as yet.
  FlatParams(c10::ScalarType dtype, c10::Device device, layout::RowLayout layout, int rank,
             std::shared_ptr<memory::ByteAccount> account);
  /// Makes the shard: a slice of `shared`, or, where that is null, memory of this rank's own. Once.
  void allocate_shard(std::shared_ptr<SharedBuffer> shared);

  const layout::RowLayout& layout() const { return layout_; }
  c10::ScalarType dtype() const { return dtype_; }
  c10::Device device() const { return device_; }
  /// Bytes of one element.
  size_t element_size() const { return c10::elementSize(dtype_); }
  /// Bytes of the whole buffer.
  size_t whole_bytes() const { return static_cast<size_t>(layout_.total_numel()) * element_size(); }
  /// The memory of this rank's slice, and where the slice begins in it.
  const std::shared_ptr<memory::FlatBuffer>& shard_buffer() const { return shard_; }
  size_t shard_byte_offset() const { return shard_byte_offset_; }
  /// This rank's slice as a flat tensor.
  at::Tensor shard() const;
  /// Whether the slice is a part of the whole buffer, so that writing one writes the other.
  bool shares_memory() const { return shared_ != nullptr; }
  /// Where ranks share memory, whose turn it is; null elsewhere.
  SharedBuffer* shared() const { return shared_.get(); }
  /// The whole buffer; null while it is away.
  const std::shared_ptr<memory::FlatBuffer>& whole_buffer() const { return whole_; }

  /// Where this rank's reduced gradients lie.
  memory::ReusedBlock& gradient_memory() { return gradient_memory_; }

  /// Makes the whole buffer, as yet without values unless ranks share memory.
  void allocate_whole();
  /// Starts gathering into the whole buffer. Collective unless ranks share memory.
  void start_gather(Communicator& communicator, Tag tag);
  /// Where ranks share memory: waiting for the gather is then waiting until every rank has started it. Collective.
  void start_meeting(Communicator& communicator, Tag tag);
  /// Makes the whole buffer a copy that only this rank sees. Where ranks share memory.
  void copy_whole();
  /// The gather that was started; null if nobody is waited for.
  const std::shared_ptr<Work>& gather() const { return gather_; }
  /// After it was waited for.
  void end_gather();
  /// The calling thread's current stream reads the whole buffer from now on: after the gather, also if another stream
  /// waited for it.
  void order_read();
  void free_whole();

 private:
  void allocate_copy();

  c10::ScalarType dtype_;
  c10::Device device_;
  layout::RowLayout layout_;
  int rank_;
  std::shared_ptr<memory::ByteAccount> account_;
  std::shared_ptr<SharedBuffer> shared_;
  std::shared_ptr<memory::FlatBuffer> shard_, whole_;
  size_t shard_byte_offset_ = 0;
  memory::ReusedBlock gradient_memory_{device_};
  std::shared_ptr<Work> gather_, gathered_;  // under way; waited for, as long as its result is there
};

}  // namespace fsdp::runtime
