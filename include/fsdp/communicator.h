#pragma once
/// \file
/// Interface of the collectives and messages with which ranks exchange data.
///
/// The library implements it in `local` (one rank), `shm` (ranks of one host) and `c10d` (Gloo, NCCL or any other c10d
/// backend). If several hosts have ranks that share memory, `c10d`'s collectives have two levels. Ranks' values are
/// summed in rank order (with two levels, first within each host), so every run gives the same bits; only a device
/// backend such as NCCL chooses its own order.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup communication
/// \{

/// Description of a collective's purpose. A tag is part of the collective's fingerprint, which ranks compare: ranks
/// whose tags differ fail with `Mismatch`.
struct Tag {
  /// Name of the parameter group or another subject, e.g. "blocks.3".
  std::string subject = {};
  /// A counter that must have the same value on every rank, e.g. {2, "saved checkpoints"}.
  struct Count {
    uint32_t number = 0;  ///< the value of the counter
    /// Name of what is counted, for error messages; a string literal.
    std::string_view of = {};
  };
  Count count = {};  ///< counter to compare; ranks whose numbers differ fail with `Mismatch`
  /// Number of the parameter group, the same on every rank; 0 for no group. It distinguishes groups with equal names.
  uint32_t group = 0;
  /// Text that replaces `subject` in this rank's error messages. Ranks do not compare it, so it may differ between
  /// ranks, as the path of a file may.
  std::string shown = {};

  /// Returns the subject for error messages.
  const std::string& text() const { return shown.empty() ? subject : shown; }
};

/// Piece of a flat tensor that is stored as a tensor of its own.
struct Piece {
  /// Index of the piece's first element in the flat tensor.
  int64_t first = 0;
  /// The piece's elements, flat and contiguous.
  at::Tensor values;
};

/// One flat tensor of an all_gather, which consists of world_size slices of equal length: rank r's slice is the
/// elements [r * n, (r + 1) * n), where n is the number of elements of `input`.
struct GatherPlane {
  /// Tensor that receives every rank's slice.
  at::Tensor output;
  /// This rank's slice, flat. It may be a view of this rank's slice of `output`.
  at::Tensor input;
};

/// One flat tensor of a reduce_scatter, with slices as in a GatherPlane.
struct ReducePlane {
  /// Tensor that receives this rank's slice of the sum, flat. It must not overlap `input`.
  at::Tensor output;
  /// This rank's contribution to all slices: pieces of the output's dtype, in ascending order. Elements that no piece
  /// covers count as zero.
  std::vector<Piece> input;
};

/// A collective in flight. One thread at a time may use it, unless `lets_others_go_on()` returns true.
///
/// On the CPU, the result is in the output when `wait` returns. On a device, the collective runs after the work that
/// the caller's current stream had when the collective was called, and `wait` makes the current stream wait for it
/// without blocking the host. If a collective fails on the device after `wait` has returned, the next collective throws
/// the error.
class Work {
 public:
  virtual ~Work() = default;
  /// Blocks until the result is in the output; on a device, makes the current stream wait for the result. May be called
  /// again. Throws `Mismatch` if the ranks' operations differ or if a rank that is alive does not join within the
  /// timeout, `PeerLost` if a rank died or left, and Error if a connection broke. Every later collective throws the
  /// same error.
  virtual void wait() = 0;
  /// Returns true if other threads may wait for this work and use the communicator while one thread is in `wait`.
  virtual bool lets_others_go_on() const { return false; }

  /// Continuation of a collective. It must neither throw nor wait.
  using Next = std::function<void()>;
  /// Calls `next` once the result is available and before `wait()` returns, on the thread that notices it. A
  /// communicator calls the continuations of its collectives in the order of the collectives. A collective that `next`
  /// starts on the same device runs after this one. If this collective fails, `next` is not called. Call `then` only
  /// once.
  virtual void then(Next next) {
    wait();
    next();
  }
};

/// Memory that all ranks of a communicator map. Each rank writes its own rows and reads all of them.
///
/// Reads belong to epochs, and all ranks count the same epochs. A reader calls `begin_read` and then a barrier; after
/// the barrier the writes of all ranks from earlier epochs are visible. A writer calls `begin_write`, which waits for
/// ranks that still read, so rows never change while a rank reads them. One thread at a time may use the buffer; while
/// that thread waits in `begin_write`, another one may.
class SharedBuffer {
 public:
  virtual ~SharedBuffer() = default;
  /// Returns the buffer's address in this process.
  virtual void* data() const = 0;
  /// Marks this rank as reading until `end_read`. `epoch` counts from 1.
  virtual void begin_read(uint64_t epoch) = 0;
  /// Ends this rank's read. May be called again.
  virtual void end_read() = 0;
  /// Ends this rank's own read, then blocks until no other rank reads in an epoch up to `epoch`, which is this rank's
  /// latest one. Throws `Mismatch` if another rank waits for this rank at the same time, and `PeerLost` at the timeout.
  virtual void begin_write(uint64_t epoch) = 0;
};

/// Description of a buffer that ranks want to share.
struct SharedPart {
  /// Name of the buffer's owner, e.g. "blocks.3", for error messages.
  std::string subject;
  size_t bytes = 0;  ///< number of bytes of the buffer
};

/// Memory that the ranks of one host share for data that they all need. Thread-safe.
class HostBuffer {
 public:
  virtual ~HostBuffer() = default;
  /// Returns the buffer's address in this process.
  virtual void* data() const = 0;
  /// Returns the number of bytes of the buffer.
  virtual size_t bytes() const = 0;
  /// Returns the number of ranks that share the buffer.
  virtual int ranks() const = 0;
  /// Returns a pointer, and marks the memory as used by this rank until the pointer is destroyed. The contents stay
  /// while any rank uses the memory; after the last use its pages return to the system.
  virtual c10::DataPtr hold() = 0;
};

/// Operation with which all_reduce combines the ranks' elements.
enum class ReduceOp : uint8_t {
  kSum,  ///< the sum
  kMax,  ///< the largest
  kMin,  ///< the smallest
};

/// A set of ranks that run collectives and exchange messages.
///
/// Every function except `rank()`, `world_size()`, `fail()`, `progress()`, `send` and `recv` is collective: all ranks
/// call these functions in the same order, with tensors of the same sizes and dtypes. Functions that return a `Work` do
/// not wait for other ranks; their tensors must not be touched until `Work::wait()` returns. Tensors are contiguous and
/// may be empty; those of one call are on one device that the backend supports (shared memory and Gloo: CPU; NCCL:
/// CUDA). Tensors may have any dtype unless stated otherwise. A call takes at least one tensor. Slices have the same
/// length on all ranks. The planes of one call travel together; NCCL launches them as one group. Wrong arguments throw
/// UsageError before anything is communicated. Ranks that wait for each other throw `Mismatch` at the timeout.
///
/// One thread at a time may use a communicator, but other threads may use it while that thread waits for a `Work` whose
/// `lets_others_go_on()` returns true. The implementation over shared memory is thread-safe.
///
///     auto& ranks = fsdp::default_process_group()->communicator();
///     ranks.all_reduce(loss, fsdp::ReduceOp::kSum, {"loss"})->wait();
///
/// To use a communicator of your own, override the pure virtual functions and pass the communicator to ProcessGroup's
/// constructor. fsdp relies on what these comments say and on the following rules:
/// - A call returns a Work that holds the tensors until the collective is done, leaves inputs unchanged, and records
///   nothing for autograd. The caller may hold a lock that the rank's other threads need, so only `Work::wait`,
///   `duplicate`, `share`, `share_on_host` and `start_over` may wait for other ranks.
/// - `share` may return no buffers. Virtual functions that are not pure need no override, except `Work::then` if a
///   group has replicas or uses a custom collective, because the default implementation of `then` waits.
/// - A communicator that compares tags finds ranks that run different programs. A communicator that does not compare
///   tags may silently sum unrelated tensors.
/// - If a communicator cannot be restarted, its `start_over` throws Error.
/// - Strategies give the same bits only if the communicator sums in rank order.
class Communicator {
 public:
  virtual ~Communicator() = default;

  /// Returns this rank's number, from 0 to world_size() - 1.
  virtual int rank() const = 0;
  /// Returns the number of ranks.
  virtual int world_size() const = 0;

  /// Gathers every rank's slice of each plane. Planes may have different dtypes and lengths.
  [[nodiscard]] virtual std::shared_ptr<Work> all_gather(std::vector<GatherPlane> planes, Tag tag) = 0;
  /// Gathers a single plane.
  [[nodiscard]] std::shared_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input, Tag tag) {
    return all_gather({GatherPlane{output, input}}, std::move(tag));
  }

  /// Sums each plane over the ranks and multiplies the sum by `scale`. Each rank receives its slice. Dtypes must be
  /// floating point.
  [[nodiscard]] virtual std::shared_ptr<Work> reduce_scatter(std::vector<ReducePlane> planes, double scale,
                                                             Tag tag) = 0;
  /// Sums a single plane without scaling; `input` is one flat tensor.
  [[nodiscard]] std::shared_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input, Tag tag) {
    return reduce_scatter({ReducePlane{output, {{0, input}}}}, 1.0, std::move(tag));
  }

  /// Reduces tensors of any sizes in place. If the values are summed in rank order, the result has the bits of a
  /// reduce_scatter followed by an all_gather.
  [[nodiscard]] virtual std::shared_ptr<Work> all_reduce(std::vector<at::Tensor> tensors, ReduceOp op, Tag tag) = 0;
  /// Reduces a single tensor.
  [[nodiscard]] std::shared_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op, Tag tag) {
    return all_reduce(std::vector<at::Tensor>{tensor}, op, std::move(tag));
  }

  /// Sends slice r of `input` to rank r, and receives rank r's slice for this rank into slice r of `output`. Both
  /// tensors are flat, have world_size slices of equal length, and do not overlap.
  [[nodiscard]] virtual std::shared_ptr<Work> all_to_all(const at::Tensor& output, const at::Tensor& input,
                                                         Tag tag) = 0;

  /// Copies `root`'s tensor to the other ranks' tensors.
  [[nodiscard]] virtual std::shared_ptr<Work> broadcast(const at::Tensor& tensor, int root, Tag tag) = 0;
  /// Sends a tensor to one peer: the n-th `send` to a peer matches the peer's n-th `recv` from this rank. Each
  /// direction between two ranks has its own queue, independent of collectives, and no call blocks. Any pattern of
  /// matching sends and receives therefore completes, provided that each rank makes the calls that other ranks need
  /// before it waits. A send is done only after the peer's matching recv; two ranks that both wait for their sends
  /// before they call recv block until the timeout.
  [[nodiscard]] virtual std::shared_ptr<Work> send(const at::Tensor& tensor, int peer, Tag tag) = 0;
  /// Receives the tensor of the peer's matching `send` into `tensor`.
  [[nodiscard]] virtual std::shared_ptr<Work> recv(const at::Tensor& tensor, int peer, Tag tag) = 0;
  /// Sends to one peer and receives from the same or another peer.
  ///
  ///     ranks.send_recv(mine, next, theirs, previous, {"halo"})->wait();
  [[nodiscard]] std::shared_ptr<Work> send_recv(const at::Tensor& outgoing, int to, const at::Tensor& incoming,
                                                int from, const Tag& tag);
  /// Returns a Work that is done when every rank has called `barrier`.
  [[nodiscard]] virtual std::shared_ptr<Work> barrier(Tag tag) = 0;

  /// Creates a communicator over the same ranks. Its operations have a queue of their own, so operations of the two
  /// communicators do not wait for each other. `name` appears in error messages. Collective; returns when this rank can
  /// use the new communicator.
  virtual std::shared_ptr<Communicator> duplicate(const std::string& name) = 0;

  /// Allocates zero-filled memory that all ranks map, so that a gather moves nothing: one buffer for each of `parts`,
  /// which must be the same on every rank. Returns no buffers if the ranks cannot share memory on `device`; a single
  /// rank always can. The buffers may outlive the communicator, and their memory must stay allocated until the last of
  /// them is destroyed. Collective.
  virtual std::vector<std::shared_ptr<SharedBuffer>> share(std::span<const SharedPart> parts, c10::Device device) = 0;
  /// Shares a single buffer. Returns null if the ranks cannot share memory.
  [[nodiscard]] std::shared_ptr<SharedBuffer> share(size_t bytes, c10::Device device, Tag tag) {
    const SharedPart part{std::move(tag.subject), bytes};
    auto buffers = share({&part, 1}, device);
    return buffers.empty() ? nullptr : std::move(buffers.front());
  }

  /// Allocates uninitialised memory that the ranks of each host share: one buffer for each of `parts`. Returns no
  /// buffers if this rank is alone on its host or memory cannot be shared on `device`. If all outputs of an all_gather
  /// lie in these buffers, at the same place on all ranks of the host, these ranks together write the outputs once for
  /// the host. A rank may call all_gather only when it no longer reads the buffers' previous contents. Collective. The
  /// buffers may outlive the communicator.
  virtual std::vector<std::shared_ptr<HostBuffer>> share_on_host(std::span<const SharedPart> /*parts*/,
                                                                 c10::Device /*device*/) {
    return {};
  }

  /// Restarts this communicator and its duplicates after a failure. Collectives in flight on any rank are dropped
  /// (`wait` throws Error), and queues of operations begin anew. A rank that calls another function meanwhile gets a
  /// `Mismatch` that says so. Collective; returns when every rank has called `start_over`. Throws `PeerLost` if a rank
  /// was lost or does not call it within the timeout; the communicator then stays unusable.
  virtual void start_over() = 0;

  /// Tells the other ranks, which may be waiting for this rank, that `operation` failed on this rank. Until
  /// `start_over`, every collective in flight and every later one throws Error with `error`, unless the communicator
  /// had failed before. Not collective. `lost` is the global rank whose loss caused the failure, possibly a rank
  /// outside this communicator; collectives then throw `PeerLost` with that rank, and `start_over` is impossible.
  virtual void fail(const std::string& /*operation*/, const std::string& /*error*/,
                    std::optional<int> /*lost*/ = std::nullopt) {}

  /// Advances operations in flight as far as possible without waiting, for backends without a thread of their own. Not
  /// collective. Throws a failure that it finds, and does nothing after a failure.
  virtual void progress() {}
};

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
