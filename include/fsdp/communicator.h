#pragma once
/// \file
/// The collectives that sharding needs, behind one interface.
///
/// Kinds: `local` (one rank), `c10d` (Gloo, NCCL, any c10d backend); decorators record or inject faults. Sums run in
/// rank order, so two runs give the same bits; only a backend's own reduction of equal parts (NCCL) has its own order.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace fsdp {

/// What a collective is for. It travels in the collective's fingerprint: ranks whose tags differ fail with `Mismatch`.
struct Tag {
  /// The parameter group or another subject, e.g. "blocks.3".
  std::string subject;
  /// One byte per vote (0 or 1), the same number on every rank; `Work::votes()` gives their OR over all ranks. If there
  /// are votes and all of them are 0 on every rank, no data moves.
  std::vector<uint8_t> votes;
};

/// A collective in flight. Thread safety: one thread at a time.
class Work {
 public:
  virtual ~Work() = default;
  /// Blocks until the result is in the output; on CUDA until the current stream will have it. Idempotent.
  /// Throws `Mismatch` when the ranks' operations differ or one that is alive did not join within the timeout,
  /// `PeerLost` when one died or left, Error when a connection broke. Every later collective then fails with the same
  /// error.
  virtual void wait() = 0;
  /// After `wait()`: the OR over all ranks of the tag's votes, each 0 or 1. Valid as long as the work.
  virtual std::span<const uint8_t> votes() const = 0;
};

/// How all_reduce combines elements.
enum class ReduceOp : uint8_t { kSum, kMax, kMin };

/// Ranks that exchange tensors.
///
/// Every call but `rank()`, `world_size()`, `allocate()` and `shares_memory()` is collective: all ranks call in the
/// same order (send and recv: the two ranks concerned), with tensors of the same sizes and dtype. Calls return at once;
/// tensors belong to the collective until `Work::wait()`. Tensors are contiguous, on a device that the backend moves
/// (Gloo: CPU, NCCL: CUDA), of any dtype unless said. Wrong arguments are a UsageError before anything is communicated.
/// Thread safety: one thread at a time.
///
///     auto& ranks = fsdp::default_process_group()->communicator();
///     ranks.all_reduce(loss, fsdp::ReduceOp::kSum, {"loss", {}})->wait();
class Communicator {
 public:
  virtual ~Communicator() = default;

  /// This rank's number, from 0 to world_size() - 1.
  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  /// Gathers unequal parts. `output` is flat; rank r's part is elements [offsets[r], offsets[r + 1]). `input` is this
  /// rank's part, flat: a tensor of its own, or the very elements of `output`. offsets: world_size + 1 ascending
  /// entries from 0 to the elements of `output`, the same on every rank.
  [[nodiscard]] virtual std::shared_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                                         std::span<const int64_t> offsets, Tag tag) = 0;

  /// Sums `input` (flat, floating point) over the ranks, in rank order; this rank keeps elements
  /// [offsets[rank], offsets[rank + 1]) in `output` (flat, of their number), which must not overlap `input`.
  [[nodiscard]] virtual std::shared_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                                             std::span<const int64_t> offsets, Tag tag) = 0;

  /// Reduces a tensor of any sizes in place; a sum in rank order has the bits of reduce_scatter followed by all_gather.
  [[nodiscard]] virtual std::shared_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op, Tag tag) = 0;

  /// Copies `root`'s tensor into everybody's.
  [[nodiscard]] virtual std::shared_ptr<Work> broadcast(const at::Tensor& tensor, int root, Tag tag) = 0;
  /// Point to point; the n-th send or recv between two ranks on one side meets the n-th on the other, which must be
  /// its counterpart: two ranks that both send first are a `Mismatch`.
  [[nodiscard]] virtual std::shared_ptr<Work> send(const at::Tensor& tensor, int peer, Tag tag) = 0;
  [[nodiscard]] virtual std::shared_ptr<Work> recv(const at::Tensor& tensor, int peer, Tag tag) = 0;
  /// Done when every rank has called it.
  [[nodiscard]] virtual std::shared_ptr<Work> barrier(Tag tag) = 0;

  /// A communicator over the same ranks with an order of its own: what runs on one does not wait for the other. `name`
  /// stands in errors. Collective; returns when every rank has it.
  virtual std::shared_ptr<Communicator> duplicate(const std::string& name) = 0;

  /// `bytes` of memory on `device` for a group's flat buffer, not initialised. A communicator whose ranks share memory
  /// returns the same pages on every rank.
  virtual c10::DataPtr allocate(size_t bytes, c10::Device device) = 0;

  /// True if `allocate` returns pages that all ranks share (one rank counts), so that a rank's rows can lie inside the
  /// flat buffer and gathering moves nothing.
  virtual bool shares_memory() const = 0;
};

}  // namespace fsdp
