#pragma once
/// \file
/// Rows that lie in host memory while whole values are on an accelerator: the copies between the two, and their dtypes.

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "memory/flat_buffer.h"

namespace fsdp::runtime {

/// The memory in which rows, gradients of rows and optimizer state lie.
enum class RowMemory : uint8_t {
  kBesideWhole,  ///< They are in memory of the device that has the whole values.
  kHost,         ///< They are in host memory that is not pinned.
  kPinned,       ///< Rows and gradients are in pinned host memory, and optimizer state is in unpinned memory.
};

/// One rank's copies between host memory and an accelerator.
///
/// Note [Copies beside the host]. A copy from or to pinned memory is asynchronous: the host goes on, and HostCopies
/// keeps the pinned memory until the copy is done. The host calls `wait` before it touches such memory, namely before
/// it writes rows and before a backward adds gradients to `.grad`. One call waits for all copies so far. A copy from or
/// to other host memory is done when the call returns.
///
/// On the accelerator a copy runs on the current stream, in order with its operators. Copies to the host have a stream
/// of their own, so that no computation waits behind them. HostCopies keeps the source of the last such copy until the
/// next one begins, because freeing the source makes the stream that allocated it wait for the copy (see FlatBuffer).
/// Thread safety: the caller holds the rank's lock.
class HostCopies {
 public:
  HostCopies() = default;
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  /// Returns the stream for the next copy to the host and for the operators that make its source. Frees the source of
  /// the previous copy.
  c10::Stream next_to_host(c10::Device device);
  /// Both functions copy on the calling thread's current stream. `to` and `from` have equally many elements of one
  /// dtype.
  void to_device(const at::Tensor& to, const memory::FlatPart& from, bool is_pinned);
  void to_host(const memory::FlatPart& to, const at::Tensor& from, bool is_pinned);
  /// Blocks the host until all copies are done.
  void wait();

 private:
  void note(const std::shared_ptr<memory::FlatBuffer>& on_host, c10::Device device);

  std::optional<c10::Stream> to_host_;
  at::Tensor last_source_;
  std::vector<c10::Stream> under_way_;  // streams with copies that `wait` has not waited for
  std::set<std::shared_ptr<memory::FlatBuffer>> kept_;
};

/// The two steps of Note [Rows and whole] that copy one flat shard between host and device. Values are copied in the
/// narrower of the two dtypes. If the host has to cast rows first, it does so once after each write, into permanent
/// memory. Thread safety: the caller holds the rank's lock.
class HostRows {
 public:
  HostRows(c10::Device device, bool is_pinned, std::shared_ptr<HostCopies> copies,
           std::shared_ptr<memory::ByteAccount> account);

  c10::Device device() const { return device_; }
  std::shared_ptr<memory::FlatBuffer> allocate(size_t bytes) const;
  /// Returns the stream on which a reduction is waited for, scaled and copied to the host; see HostCopies.
  c10::Stream stream_of_results() const { return copies_->next_to_host(device_); }

  /// Casts the rows as they are now, if `bring` has to copy them in a narrower dtype. `whole` is the dtype of whole
  /// values.
  void publish(const memory::FlatPart& rows, c10::ScalarType whole);
  /// Copies the rows to `slice`, this rank's part of the whole buffer, on the current stream.
  void bring(const memory::FlatPart& rows, const at::Tensor& slice);
  /// Makes the current stream wait for the last `bring`.
  void order_read() const;

  /// Starts to copy the reduced gradient `reduced` to the rows' gradient `rows`, on the current stream.
  void land(const at::Tensor& reduced, const memory::FlatPart& rows);
  /// Blocks the host until all copies are done, and casts what arrived in a narrower dtype.
  void finish_landing();
  /// Forgets the casts that `finish_landing` would make.
  void drop_landing() { casts_.clear(); }

 private:
  struct Cast {
    memory::FlatPart from, to;
  };

  const c10::Device device_;
  const bool is_pinned_;
  const std::shared_ptr<HostCopies> copies_;
  const std::shared_ptr<memory::ByteAccount> account_;
  std::optional<memory::FlatPart> narrow_;  // the rows in the narrower dtype, if they are cast before the copy
  std::optional<c10::Event> brought_;
  std::vector<Cast> casts_;  // casts on the host that finish_landing makes after the copies
};

}  // namespace fsdp::runtime
