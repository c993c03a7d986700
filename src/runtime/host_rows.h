#pragma once
/// \file
/// Rows that lie in host memory while whole values are on an accelerator: what crosses the bus, and in which dtype.

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "memory/flat_buffer.h"

namespace fsdp::runtime {

/// Where rows, gradients of rows and optimizer state are.
enum class RowMemory : uint8_t {
  kBesideWhole,  ///< on the device of whole values
  kHost,         ///< in host memory
  kPinned,       ///< the same, but the state, in pinned memory
};

/// Copies between host memory and an accelerator, beside the host and beside what the accelerator computes, of one
/// rank.
///
/// Note [Copies beside the host]. A copy from or to pinned memory goes on while the host does other things, and the
/// memory is kept here meanwhile. Whoever writes or reads it on the host waits first (`wait`): who writes rows, and a
/// backward before it hands gradients out. One wait is for all copies so far. Copies from or to other host memory are
/// over when they return.
///
/// On the accelerator a copy is ordered as any operator on the current stream. Copies to the host have a stream of
/// their own, so that nothing is computed after them; the source of the last one is kept until the next, since the
/// stream that its memory was taken on waits for this one when it goes. Thread safety: under the rank's lock.
class HostCopies {
 public:
  HostCopies() = default;
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  /// For copies to the host and for what makes their sources; the source of the one before is let go.
  c10::Stream next_to_host(c10::Device device);
  /// On the calling thread's current stream. Both sides have as many elements, of one dtype.
  void to_device(const at::Tensor& to, const memory::FlatPart& from, bool is_pinned);
  void to_host(const memory::FlatPart& to, const at::Tensor& from, bool is_pinned);
  /// The host waits until no copy is under way.
  void wait();

 private:
  void note(const std::shared_ptr<memory::FlatBuffer>& on_host, c10::Device device);

  std::optional<c10::Stream> to_host_;
  at::Tensor last_source_;
  std::vector<c10::Stream> under_way_;  // streams with copies that nobody waited for
  std::set<std::shared_ptr<memory::FlatBuffer>> kept_;
};

/// The two steps of Note [Rows and whole] that cross the bus, of one flat shard, in the narrower dtype of their ends.
/// Rows that are cast on the host are cast once for each write to them, into memory that stays. Thread safety: under
/// the rank's lock.
class HostRows {
 public:
  HostRows(c10::Device device, bool is_pinned, std::shared_ptr<HostCopies> copies,
           std::shared_ptr<memory::ByteAccount> account);

  c10::Device device() const { return device_; }
  std::shared_ptr<memory::FlatBuffer> allocate(size_t bytes) const;
  /// The stream for what is reduced, and on which it is landed; see HostCopies.
  c10::Stream stream_of_results() const { return copies_->next_to_host(device_); }

  /// What travels are the rows as they are now.
  void publish(const memory::FlatPart& rows, c10::ScalarType whole);
  /// Fills `slice`, this rank's part of the whole buffer, on the current stream.
  void bring(const memory::FlatPart& rows, const at::Tensor& slice);
  /// What the current stream is given from now on comes after what was brought last.
  void order_read() const;

  /// Starts to copy `reduced` to `rows` of a gradient, on the current stream.
  void land(const at::Tensor& reduced, const memory::FlatPart& rows);
  /// The host waits until all that was to land is there.
  void finish_landing();
  void drop_landing() { casts_.clear(); }

 private:
  struct Cast {
    memory::FlatPart from, to;
  };

  const c10::Device device_;
  const bool is_pinned_;
  const std::shared_ptr<HostCopies> copies_;
  const std::shared_ptr<memory::ByteAccount> account_;
  std::optional<memory::FlatPart> narrow_;  // the rows, where they are cast before they travel
  std::optional<c10::Event> brought_;
  std::vector<Cast> casts_;  // once the host has waited
};

}  // namespace fsdp::runtime
