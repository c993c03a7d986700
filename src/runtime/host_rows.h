#pragma once
/// \file
/// Rows that lie in host memory while whole values are on an accelerator: what crosses the bus, and in which dtype.

#include <c10/core/Event.h>

#include <memory>
#include <optional>
#include <vector>

#include "memory/host_copies.h"

namespace fsdp::runtime {

/// Where rows, gradients of rows and optimizer state are.
enum class RowMemory : uint8_t {
  kBesideWhole,  ///< on the device of whole values
  kHost,         ///< in host memory
  kPinned,       ///< the same, but the state, in pinned memory
};

/// The two steps of Note [Rows and whole] that cross the bus, of one flat shard. Each goes in the narrower dtype of its
/// two ends: what is wider there is cast before, what is wider here behind. Rows that are cast on the host are cast
/// once for each write to them, into memory that stays.
///
/// See Note [Copies beside the host]. Thread safety: under the rank's lock.
class HostRows {
 public:
  HostRows(c10::Device device, bool is_pinned, std::shared_ptr<memory::HostCopies> copies,
           std::shared_ptr<memory::ByteAccount> account);

  c10::Device device() const { return device_; }
  /// Memory for rows or their gradients.
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
  /// Nobody wants it any more.
  void drop_landing() { casts_.clear(); }

 private:
  struct Cast {
    memory::FlatPart from, to;
  };

  const c10::Device device_;
  const bool is_pinned_;
  const std::shared_ptr<memory::HostCopies> copies_;
  const std::shared_ptr<memory::ByteAccount> account_;
  std::optional<memory::FlatPart> narrow_;  // the rows, where they are cast before they travel
  std::optional<c10::Event> brought_;
  std::vector<Cast> casts_;  // once the host has waited
};

}  // namespace fsdp::runtime
