#pragma once
/// \file
/// The ranks of this program and how they found each other.

#include <fsdp/backend.h>
#include <fsdp/communicator.h>
#include <fsdp/traffic.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup ranks
/// \{

struct Rendezvous;

/// Who this rank is, where the ranks meet and how they communicate. Every field is optional.
///
///     fsdp::init_process_group({.backend = "gloo", .timeout = std::chrono::seconds(60)});
struct ProcessGroupOptions {
  /// "auto": "nccl" where fsdp was built with NCCL and there is a CUDA device, else "cpu". With "nccl" the rank's
  /// tensors are on the CUDA device with the number local_rank, which becomes the calling thread's current one, or on
  /// the CPU, whose data goes over Gloo. "cpu": shared memory where all ranks are on one host, else Gloo, with shared
  /// memory inside hosts that have as many ranks each; "shm", "gloo" and "hierarchical" insist on one of these. These
  /// four are for tensors on the CPU.
  std::string backend = "auto";
  /// A backend of one's own for this rank's tensors on an accelerator, e.g. one that fsdp does not know; `backend` is
  /// "auto" or "gloo" then. Fingerprints and tensors on the CPU go over Gloo.
  std::optional<DeviceBackend> device_backend = std::nullopt;
  /// The longest that a rank waits for its peers in one operation.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// This rank's number, from 0. Unset: taken from the environment (see init_process_group). It and world_size go
  /// together.
  std::optional<int> rank = std::nullopt;
  /// The number of ranks. Unset: as `rank`.
  std::optional<int> world_size = std::nullopt;
  /// This rank's number among those of its host, which decides on its CUDA device. Unset: as `rank`.
  std::optional<int> local_rank = std::nullopt;
  /// "host:port" of the rendezvous store; unset: MASTER_ADDR and MASTER_PORT.
  std::optional<std::string> address = std::nullopt;
  /// A rendezvous that is there already, e.g. a HashStore of ranks that are threads.
  c10::intrusive_ptr<c10d::Store> store = {};
};

/// This rank's membership in a set of ranks. Shared by every group that was sharded over it. Thread safety: of rank(),
/// world_size(), local_rank() and device() all of it, of the communicators see Communicator.
class ProcessGroup {
 public:
  /// Over a communicator of one's own, of which `reductions()` is a duplicate. Collective. Its ranks are on hosts of
  /// their own, and it cannot be split.
  ProcessGroup(std::shared_ptr<Communicator> communicator, int local_rank);

  /// This rank's number, from 0.
  int rank() const { return communicator_->rank(); }
  /// The number of ranks.
  int world_size() const { return communicator_->world_size(); }
  /// Rank among the ranks of this host.
  int local_rank() const { return local_rank_; }
  /// Of this rank's tensors: the accelerator whose collectives it was made with ("nccl", or a backend of one's own),
  /// else the CPU.
  c10::Device device() const;
  /// Empty unless it was split from another one.
  const std::string& name() const { return name_; }
  /// By rank of this group: its number in the group from which all others were split, ascending.
  const std::vector<int>& global_ranks() const { return global_ranks_; }
  /// By rank of this group: the number of its host. Hosts are numbered by their first ranks.
  const std::vector<int>& hosts() const { return hosts_; }

  /// Makes groups of which no two have a rank in common, all at once: this rank's, or null if it is in none of them.
  /// `groups` are global ranks of this group; a subgroup's ranks are in their order. Collective over this group, with
  /// the same arguments on every rank: else a Mismatch. Throws UsageError for a rank that is not of this group or is in
  /// two, and what new_process_group throws. A subgroup's errors name global ranks, as do PeerLost::rank() and where();
  /// roots and peers of its collectives are its own numbers. The loss of a rank ends only the groups that it is in.
  ///
  ///     auto pair = fsdp::default_process_group()->split({{0, 1}, {2, 3}}, "pairs");
  std::shared_ptr<ProcessGroup> split(std::vector<std::vector<int>> groups, const std::string& name) const;
  /// How this rank's errors begin: "[fsdp rank 1/4] step: ". In a subgroup that is the global rank, and the subgroup's
  /// name and this rank's number in it follow: "[fsdp rank 5/8, 'pairs' 1/2] step: ". Any thread.
  std::string where(const std::string& operation) const;
  /// Gathers and everything that callers wait for at once.
  Communicator& communicator() const { return *communicator_; }
  /// Gradient reductions, in an order of their own: a rank that misses a gradient reduces later than its peers.
  Communicator& reductions() const { return *reductions_; }
  /// What this rank exchanged since it joined, over this group, that from which it was split and all others split from
  /// that; nothing over a communicator of one's own. Any thread.
  Traffic traffic() const;

 private:
  friend struct Attachment;
  friend std::shared_ptr<ProcessGroup> join_as_group(const Rendezvous& rendezvous);

  std::shared_ptr<void> attachment_;
  std::shared_ptr<Communicator> communicator_, reductions_;
  int local_rank_;
  std::string name_;
  std::vector<int> global_ranks_, hosts_;
  std::shared_ptr<const Rendezvous> rendezvous_;  // null over a communicator of one's own
};

/// Joins the ranks named by RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT (torchrun, fsdprun), or by the
/// variables of Open MPI, PMI or Slurm; with none of them set, makes a group of one rank. Collective.
/// Makes the result the default process group. Call it once, before fully_shard, from one thread.
///
/// Throws UsageError naming the variable or option that is missing or wrong, a local rank without a CUDA device for
/// "nccl", or if there is a default group already; PeerLost naming the ranks that do not come within the timeout, rank
/// 0 also if nobody answers at its address; Mismatch if ranks disagree about the world size or the backend; Error if
/// the launcher's store does not answer. docs/launching.md lists the variables.
///
///     fsdp::init_process_group();  // started by fsdprun --nproc_per_node 2 ./app
void init_process_group(ProcessGroupOptions options = {});

/// Leaves the default process group; without one it does nothing. Not collective; a rank that leaves early is
/// `PeerLost` to those that still wait. Groups that were sharded over it keep it until they go.
void destroy_process_group();

/// The default group: this thread's (see ThreadProcessGroupGuard), else the process's. Any thread. Throws UsageError
/// before init_process_group().
std::shared_ptr<ProcessGroup> default_process_group();

/// Makes `group` the default of this thread while the guard lives, e.g. in tests whose ranks are threads.
class [[nodiscard]] ThreadProcessGroupGuard {
 public:
  /// Null: this thread has none of its own.
  explicit ThreadProcessGroupGuard(std::shared_ptr<ProcessGroup> group);
  ~ThreadProcessGroupGuard();
  ThreadProcessGroupGuard(const ThreadProcessGroupGuard&) = delete;
  ThreadProcessGroupGuard& operator=(const ThreadProcessGroupGuard&) = delete;

 private:
  std::shared_ptr<ProcessGroup> previous_;
};

/// Makes a group without making it the default. Collective over its ranks. Throws as init_process_group does.
///
///     options.process_group = fsdp::new_process_group({.rank = r, .world_size = 2, .store = store});
std::shared_ptr<ProcessGroup> new_process_group(ProcessGroupOptions options);

/// This rank's number in the default group, from 0. Any thread. Throws UsageError before init_process_group().
int rank();
/// The number of ranks of the default group. Any thread. Throws UsageError before init_process_group().
int world_size();
/// This rank's number among the ranks of its host, from 0. Any thread. Throws UsageError before init_process_group().
int local_rank();
/// Waits until every rank of the default group is here. Collective. Throws what Work::wait throws.
void barrier();

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
