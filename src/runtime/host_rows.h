#pragma once
/// \file
/// Rows that lie in host memory while whole values are on an accelerator: the copies between the two.

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
  /// Notes that the calling thread's current stream of `device` copies from or to `on_host`, which is pinned. `source`
  /// is the copied tensor if the copy goes to the host.
  void note(const std::shared_ptr<memory::FlatBuffer>& on_host, c10::Device device, at::Tensor source = {});
  /// Blocks the host until all copies are done.
  void wait();

 private:
  std::optional<c10::Stream> to_host_;
  at::Tensor last_source_;
  std::vector<c10::Stream> under_way_;  // streams with copies that `wait` has not waited for
  std::set<std::shared_ptr<memory::FlatBuffer>> kept_;
};

}  // namespace fsdp::runtime
