#pragma once
/// \file
/// The collectives that sharding needs, behind one interface.
///
/// Kinds: `local` (one rank), `shm` (ranks of one host), `c10d` (Gloo, NCCL, any c10d backend; between hosts whose
/// ranks share memory, two levels). Sums run in rank order, over two levels inside each host first, so two runs give
/// the same bits; only a device's backend (NCCL) has an order of its own.

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

/// What a collective is for. It travels in the collective's fingerprint: ranks whose tags differ fail with `Mismatch`.
struct Tag {
  /// The parameter group or another subject, e.g. "blocks.3".
  std::string subject = {};
  /// What every rank must have done equally often before, and how often this one has, e.g. {2, "saved checkpoints"}.
  struct Count {
    uint32_t number = 0;  ///< how often
    /// For messages; a literal.
    std::string_view of = {};
  };
  Count count = {};  ///< ranks whose numbers differ fail with `Mismatch`
  /// The number of the parameter group, counted alike on every rank; 0: none. Groups of twin models have one name.
  uint32_t group = 0;
  /// What messages say instead of the subject, where this rank can say more than ranks must have alike: the file that a
  /// call is about, which another rank may call otherwise.
  std::string shown = {};

  /// The text for messages.
  const std::string& text() const { return shown.empty() ? subject : shown; }
};

/// A part of a flat tensor that lies elsewhere in memory.
struct Piece {
  /// Where it begins in the flat tensor, in elements.
  int64_t first = 0;
  /// Flat and contiguous.
  at::Tensor values;
};

/// One flat tensor of an all_gather, of world_size slices of equal length: rank r's slice is the elements [r * n,
/// (r + 1) * n), where n is the number of elements of `input`.
struct GatherPlane {
  /// Receives every rank's slice.
  at::Tensor output;
  /// This rank's slice, flat: a tensor of its own, or the very elements of `output`.
  at::Tensor input;
};

/// One flat tensor of a reduce_scatter, of world_size slices of equal length, laid out as in a GatherPlane.
struct ReducePlane {
  /// Receives this rank's slice of the sum, flat. It overlaps no piece of `input`.
  at::Tensor output;
  /// What this rank contributes to all slices: pieces of the output's dtype, in ascending order. Elements that lie in
  /// no piece are zero.
  std::vector<Piece> input;
};

/// A collective in flight. Thread safety: one thread at a time, or see `lets_others_go_on`.
///
/// On the CPU the result is in the output when `wait` returns. On a device a collective is an event: the device runs
/// it after the work that the current stream had when the collective was called, and `wait` makes the stream that is
/// current then wait for it, not the host. The next collective throws what goes wrong on the device later.
class Work {
 public:
  virtual ~Work() = default;
  /// Blocks until the result is in the output, on a device until the current stream will have it. Idempotent.
  /// Throws `Mismatch` when the ranks' operations differ or one that is alive did not join within the timeout,
  /// `PeerLost` when one died or left, Error when a connection broke. Every later collective then fails with the same
  /// error.
  virtual void wait() = 0;
  /// Whether other threads may call `wait` of this work too, and use the communicator, while a thread waits.
  virtual bool lets_others_go_on() const { return false; }

  /// A function that follows a collective. It must neither throw nor wait.
  using Next = std::function<void()>;
  /// Calls `next` when the result is there and before `wait()` returns, on the thread that finds it there. The `next`
  /// functions of one communicator's collectives are called in the order of these. A collective that `next` starts on
  /// the same device comes after this one, on streams too. After a failure `next` is not called. Call this only once.
  virtual void then(Next next) {
    wait();
    next();
  }
};

/// Memory that every rank of a communicator sees: a rank writes its own rows of it and reads all of it.
///
/// Reading takes place in epochs, which ranks count alike. A reader calls `begin_read`, then a barrier, after which
/// every rank's writes of earlier epochs are there. A writer waits in `begin_write` for slower readers, so rows never
/// change under a reader. Thread safety: one thread at a time, but for what others do while a thread waits in
/// `begin_write`.
class SharedBuffer {
 public:
  virtual ~SharedBuffer() = default;
  /// Where it begins in this rank's address space.
  virtual void* data() const = 0;
  /// This rank reads until `end_read`; `epoch` counts from 1.
  virtual void begin_read(uint64_t epoch) = 0;
  /// Idempotent.
  virtual void end_read() = 0;
  /// Ends this rank's own reading, then blocks until no peer reads in an epoch up to `epoch`, this rank's last one.
  /// Throws `Mismatch` when a peer waits for this rank meanwhile, `PeerLost` when the timeout has passed.
  virtual void begin_write(uint64_t epoch) = 0;
};

/// A buffer that ranks are to share.
struct SharedPart {
  /// Whose it is, e.g. "blocks.3": for messages.
  std::string subject;
  size_t bytes = 0;  ///< its size
};

/// Memory for what the ranks of a host hold alike, once on that host. Thread safety: all of it.
class HostBuffer {
 public:
  virtual ~HostBuffer() = default;
  /// Where it begins in this rank's address space.
  virtual void* data() const = 0;
  /// Its size.
  virtual size_t bytes() const = 0;
  /// How many ranks share it.
  virtual int ranks() const = 0;
  /// This rank uses the memory until the pointer goes. Its content stays while any rank uses it; after the last one the
  /// system has its pages back.
  virtual c10::DataPtr hold() = 0;
};

/// How all_reduce combines elements.
enum class ReduceOp : uint8_t {
  kSum,  ///< the sum
  kMax,  ///< the largest
  kMin,  ///< the smallest
};

/// Ranks that exchange tensors.
///
/// Every call but `rank()`, `world_size()`, `fail()`, `progress()`, `send` and `recv` is collective: all ranks call in
/// the same order, with tensors of the same sizes and dtypes. Calls that give `Work` wait for nobody; tensors belong to
/// the collective until `Work::wait()`. Tensors are contiguous, those of one call on one device, which the backend
/// moves (shared memory and Gloo: CPU, NCCL: CUDA), and have any dtype unless the call says otherwise. Slices have
/// equal lengths on all ranks, so that a backend's own collectives fit; several planes in one call travel together, on
/// NCCL in one launch. A call takes at least one tensor; tensors may be empty. Wrong arguments throw UsageError before
/// anything is communicated.
/// Thread safety: one thread at a time, but for what others do while a thread waits for a `Work` that lets them; over
/// shared memory all of it. Ranks that wait for each other get a `Mismatch` at the timeout.
///
///     auto& ranks = fsdp::default_process_group()->communicator();
///     ranks.all_reduce(loss, fsdp::ReduceOp::kSum, {"loss"})->wait();
///
/// To write a communicator of your own, override the pure functions and give it to ProcessGroup's constructor. fsdp
/// relies on what these comments say and on the following:
/// - A call gives a Work, holds the tensors until it is done, leaves inputs as they are, and records nothing for
///   autograd. It may be made under a lock that other threads of the rank need, so only `Work::wait`, `duplicate`,
///   `share`, `share_on_host` and `start_over` may wait for other ranks.
/// - `share` may return nothing. Functions that are not pure need no override, except
///   `Work::then` where a group has replicas or goes through a user's collective: its default waits.
/// - A communicator that compares tags can tell ranks that they run different programs; one that does not may sum
///   different things without an error. A communicator that cannot begin anew throws Error in `start_over`.
/// - Strategies give the same bits only if the communicator sums in rank order.
class Communicator {
 public:
  virtual ~Communicator() = default;

  /// This rank's number, from 0 to world_size() - 1.
  virtual int rank() const = 0;
  /// The number of ranks.
  virtual int world_size() const = 0;

  /// Gathers every rank's slice of each plane. Planes may have different dtypes and lengths.
  [[nodiscard]] virtual std::shared_ptr<Work> all_gather(std::vector<GatherPlane> planes, Tag tag) = 0;
  /// Gathers a single plane.
  [[nodiscard]] std::shared_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input, Tag tag) {
    return all_gather({GatherPlane{output, input}}, std::move(tag));
  }

  /// Sums each plane over the ranks and multiplies the sum by `scale`; each rank gets its slice. All dtypes must be
  /// floating point.
  [[nodiscard]] virtual std::shared_ptr<Work> reduce_scatter(std::vector<ReducePlane> planes, double scale,
                                                             Tag tag) = 0;
  /// Sums a single plane, whose input is one flat tensor, and does not scale it.
  [[nodiscard]] std::shared_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input, Tag tag) {
    return reduce_scatter({ReducePlane{output, {{0, input}}}}, 1.0, std::move(tag));
  }

  /// Reduces tensors of any sizes in place. A sum in rank order gives the same bits as a reduce_scatter followed by an
  /// all_gather.
  [[nodiscard]] virtual std::shared_ptr<Work> all_reduce(std::vector<at::Tensor> tensors, ReduceOp op, Tag tag) = 0;
  /// Reduces a single tensor.
  [[nodiscard]] std::shared_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op, Tag tag) {
    return all_reduce(std::vector<at::Tensor>{tensor}, op, std::move(tag));
  }

  /// Sends slice r of this rank's `input` to rank r, and receives into slice r of `output` what rank r sends to this
  /// rank. Both tensors are flat, have world_size slices of equal length, and do not overlap.
  [[nodiscard]] virtual std::shared_ptr<Work> all_to_all(const at::Tensor& output, const at::Tensor& input,
                                                         Tag tag) = 0;

  /// Copies `root`'s tensor into everybody's.
  [[nodiscard]] virtual std::shared_ptr<Work> broadcast(const at::Tensor& tensor, int root, Tag tag) = 0;
  /// Point to point: the n-th `send` to a peer meets the n-th `recv` that the peer calls for this rank. Each direction
  /// between two ranks is an order of its own, beside that of the collectives, and no call blocks: any pattern whose
  /// sends and receives match completes, provided that a rank calls what others need before it waits. A send of any
  /// size is done when its recv takes part: two ranks that both wait for their sends before they call recv wait for
  /// each other, until the timeout.
  [[nodiscard]] virtual std::shared_ptr<Work> send(const at::Tensor& tensor, int peer, Tag tag) = 0;
  /// Receives into `tensor` what `peer` sends, see `send`.
  [[nodiscard]] virtual std::shared_ptr<Work> recv(const at::Tensor& tensor, int peer, Tag tag) = 0;
  /// Sends and receives at once, with one peer or two.
  ///
  ///     ranks.send_recv(mine, next, theirs, previous, {"halo"})->wait();
  [[nodiscard]] std::shared_ptr<Work> send_recv(const at::Tensor& outgoing, int to, const at::Tensor& incoming,
                                                int from, const Tag& tag);
  /// Done when every rank has called it.
  [[nodiscard]] virtual std::shared_ptr<Work> barrier(Tag tag) = 0;

  /// A communicator over the same ranks with an order of its own: what runs on one does not wait for the other. `name`
  /// stands in errors. Collective; returns when this rank can use it.
  virtual std::shared_ptr<Communicator> duplicate(const std::string& name) = 0;

  /// Memory of zeros that all ranks see (one rank counts), so that gathering moves nothing: a buffer for each of
  /// `parts`, which are the same on every rank; none where ranks share none on `device`. They outlive the communicator;
  /// their memory may go with the last of them.
  virtual std::vector<std::shared_ptr<SharedBuffer>> share(std::span<const SharedPart> parts, c10::Device device) = 0;
  /// Shares a single buffer; null where the ranks share none.
  [[nodiscard]] std::shared_ptr<SharedBuffer> share(size_t bytes, c10::Device device, Tag tag) {
    const SharedPart part{std::move(tag.subject), bytes};
    auto buffers = share({&part, 1}, device);
    return buffers.empty() ? nullptr : std::move(buffers.front());
  }

  /// Memory of any content that the ranks of this host share, on each host its own: a buffer for each of `parts`; none
  /// where this rank is alone on its host, or ranks share none on `device`. An all_gather of this communicator whose
  /// outputs all lie in them, on all ranks of the host alike, is written there once, by all of them together; a rank
  /// calls it when it no longer reads what it gathered there before. Collective. They outlive the communicator.
  virtual std::vector<std::shared_ptr<HostBuffer>> share_on_host(std::span<const SharedPart> /*parts*/,
                                                                 c10::Device /*device*/) {
    return {};
  }

  /// Begins anew after a failure, with all duplicates: what is in flight on any rank is dropped (its `wait` throws
  /// Error), and every order starts from here. A rank that goes on meanwhile gets a `Mismatch` that says so.
  /// Collective; returns when every rank has called it. Throws `PeerLost` if a rank was lost or does not come within
  /// the timeout: then there is no new beginning.
  virtual void start_over() = 0;

  /// Tells every rank that `operation` failed on this one alone, which may be what they wait for: until the ranks start
  /// over, what is in flight and what comes later throws Error with `error`, unless something else failed before. Any
  /// rank may call it. `lost`: the global rank whose loss made it fail, perhaps one among other ranks than these; then
  /// they throw `PeerLost` with it, and there is no new beginning.
  virtual void fail(const std::string& /*operation*/, const std::string& /*error*/,
                    std::optional<int> /*lost*/ = std::nullopt) {}

  /// Moves on what is in flight as far as that needs no waiting; for backends that have no thread for it. Any rank may
  /// call it between other calls. Throws a failure that it finds; after one it does nothing.
  virtual void progress() {}
};

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
