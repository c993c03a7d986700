#pragma once
/// \file
/// Copies between host memory and an accelerator, beside the host and beside what the accelerator computes.

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "memory/part_storage.h"

namespace fsdp::memory {

/// Those of one rank.
///
/// Note [Copies beside the host]. A copy from or to pinned memory goes on while the host does other things. Until the
/// host has waited for it (`wait`), such memory is not to be written, of a copy to the host not to be read, and it is
/// kept here, so that it cannot be given back. Whoever writes or reads it on the host waits first: who writes rows, and
/// a backward before it hands gradients out. One wait is for all copies so far, and without any it is none.
///
/// On the accelerator a copy is ordered as any operator on the current stream. Copies to the host have a stream of
/// their own, so that nothing is computed after them; the source of the last one is kept until the next, since the
/// stream that its memory was taken on waits for this one when it goes.
///
/// Copies from or to other host memory are over when they return. Thread safety: under the rank's lock.
class HostCopies {
 public:
  HostCopies() = default;
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  /// For copies to the host and for what makes their sources; the source of the one before is let go.
  c10::Stream next_to_host(c10::Device device);
  /// On the calling thread's current stream. Both sides have as many elements, of one dtype.
  void to_device(const at::Tensor& to, const FlatPart& from, bool is_pinned);
  void to_host(const FlatPart& to, const at::Tensor& from, bool is_pinned);
  /// The host waits until no copy is under way.
  void wait();

 private:
  void note(const std::shared_ptr<FlatBuffer>& on_host, c10::Device device);

  std::optional<c10::Stream> to_host_;
  at::Tensor last_source_;
  std::vector<c10::Stream> under_way_;  // streams with copies that nobody waited for
  std::set<std::shared_ptr<FlatBuffer>> kept_;
};

}  // namespace fsdp::memory
