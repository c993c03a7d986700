#pragma once
/// \file
/// Process groups: sets of ranks of this program, and how ranks find each other.

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

/// Options of a process group: this rank's identity, and where and how the ranks communicate. Every field is optional.
///
///     fsdp::init_process_group({.backend = "gloo", .timeout = std::chrono::seconds(60)});
struct ProcessGroupOptions {
  /// Name of the backend. "auto" means "nccl" if fsdp was built with NCCL and LibTorch sees a CUDA device, otherwise
  /// "cpu". With "nccl" the rank's tensors are on the CUDA device with the number local_rank, which becomes the calling
  /// thread's current device; tensors on the CPU go over Gloo. "cpu" means shared memory ("shm") if all ranks are on
  /// one host; Gloo with shared memory inside hosts ("hierarchical") if all hosts have the same number of ranks, more
  /// than one; and otherwise Gloo ("gloo"). "cpu", "shm", "hierarchical" and "gloo" are for tensors on the CPU.
  std::string backend = "auto";
  /// Backend of your own for this rank's tensors on an accelerator. `backend` must then be "auto" or "gloo".
  /// Fingerprints and tensors on the CPU go over Gloo.
  std::optional<DeviceBackend> device_backend = std::nullopt;
  /// Longest time that a rank waits for other ranks in one operation.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// This rank's number, from 0. If unset, the environment decides, see init_process_group. Set rank and world_size
  /// together.
  std::optional<int> rank = std::nullopt;
  /// Number of ranks. If unset, the environment decides.
  std::optional<int> world_size = std::nullopt;
  /// This rank's number on its host, which selects its CUDA device. If unset, the environment decides.
  std::optional<int> local_rank = std::nullopt;
  /// Address "host:port" of the rendezvous store; if unset, MASTER_ADDR and MASTER_PORT apply.
  std::optional<std::string> address = std::nullopt;
  /// Existing rendezvous store, for example a HashStore for ranks that are threads; if null, the library connects to
  /// `address`.
  c10::intrusive_ptr<c10d::Store> store = {};
};

/// This rank's membership in a set of ranks. All modules that were sharded over these ranks share the object. rank(),
/// world_size(), local_rank() and device() are thread-safe; see Communicator for the thread safety of the
/// communicators.
class ProcessGroup {
 public:
  /// Makes a process group over a communicator of your own, and duplicates the communicator for `reductions()`.
  /// Collective. The library assumes that each rank is on a host of its own. The group cannot be split.
  ProcessGroup(std::shared_ptr<Communicator> communicator, int local_rank);

  /// Returns this rank's number, from 0.
  int rank() const { return communicator_->rank(); }
  /// Returns the number of ranks.
  int world_size() const { return communicator_->world_size(); }
  /// Returns this rank's number among the ranks of its host.
  int local_rank() const { return local_rank_; }
  /// Returns the device of this rank's tensors: the accelerator of "nccl" or of your own backend, otherwise the CPU.
  c10::Device device() const;
  /// Returns the name that was passed to `split`; empty for other groups.
  const std::string& name() const { return name_; }
  /// Returns, for each rank of this group, its number in the group from which all others were split. The numbers
  /// ascend.
  const std::vector<int>& global_ranks() const { return global_ranks_; }
  /// Returns, for each rank of this group, the number of its host. Hosts are numbered in the order of their first
  /// ranks.
  const std::vector<int>& hosts() const { return hosts_; }

  /// Makes several process groups at once, no two of which have a common rank. Returns the group that has this rank, or
  /// null. Each element of `groups` lists global ranks of this group; whatever the order of a list, a subgroup's ranks
  /// are in ascending order of their global ranks. Collective over this group; ranks must pass equal arguments,
  /// otherwise they get a Mismatch. Throws UsageError for a rank that is not in this group or listed twice, and what
  /// new_process_group throws. A subgroup's errors, PeerLost::rank() and where() name global ranks, but roots and peers
  /// of its collectives are ranks of the subgroup. If a rank is lost, only the groups that contain it fail.
  ///
  ///     auto pair = fsdp::default_process_group()->split({{0, 1}, {2, 3}}, "pairs");
  std::shared_ptr<ProcessGroup> split(std::vector<std::vector<int>> groups, const std::string& name) const;
  /// Returns the prefix of this rank's error messages: "[fsdp rank 1/4] step: ". In a subgroup the global rank is
  /// followed by the subgroup's name and the rank in the subgroup: "[fsdp rank 5/8, 'pairs' 1/2] step: ". Any thread
  /// may call this function.
  std::string where(const std::string& operation) const;
  /// Returns the communicator for gathers and for other operations whose results are needed immediately.
  Communicator& communicator() const { return *communicator_; }
  /// Returns the communicator for gradient reductions. It has its own queue of operations, because a rank that misses a
  /// gradient reduces later than others.
  Communicator& reductions() const { return *reductions_; }
  /// Returns the bytes that this rank has exchanged, since it joined, over the group from which all others were split
  /// and over all groups that were split from it. Returns zeros for a communicator of your own. Any thread may call
  /// this function.
  Traffic traffic() const;

 private:
  friend struct Attachment;
  friend std::shared_ptr<ProcessGroup> join_as_group(const Rendezvous& rendezvous);

  std::shared_ptr<void> attachment_;
  std::shared_ptr<Communicator> communicator_, reductions_;
  int local_rank_;
  std::string name_;
  std::vector<int> global_ranks_, hosts_;
  std::shared_ptr<const Rendezvous> rendezvous_;  // null over a user's own communicator
};

/// Joins the ranks that the environment describes and makes the process group of these ranks the default one. The
/// environment has RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT (torchrun, fsdprun), or the variables of
/// Open MPI, PMI or Slurm; without any of these variables the group has one rank. Collective. Call this function once,
/// before fully_shard, from one thread.
///
/// Throws UsageError, which names the variable or option, if a variable or option is missing or wrong. Throws
/// UsageError also if the backend is "nccl" and there is no CUDA device for the local rank, and if there is a default
/// group already. Throws PeerLost, which names the ranks that do not join within the timeout, or rank 0 if nothing
/// answers at its address; Mismatch if ranks disagree about the world size or the backend; and Error if the launcher's
/// store does not answer. docs/launching.md lists the variables.
///
///     fsdp::init_process_group();  // started by fsdprun --nproc_per_node 2 ./app
void init_process_group(ProcessGroupOptions options = {});

/// Leaves the default process group; does nothing if there is none. Not collective. Ranks that still wait for a rank
/// that has left throw `PeerLost`. Modules that were sharded over the process group keep it alive.
void destroy_process_group();

/// Returns the default process group: that of this thread (see ThreadProcessGroupGuard), or else that of the process.
/// Any thread may call this function. Throws UsageError before init_process_group().
std::shared_ptr<ProcessGroup> default_process_group();

/// Guard that makes a process group this thread's default while the guard lives, for example in tests whose ranks are
/// threads.
class [[nodiscard]] ThreadProcessGroupGuard {
 public:
  /// Makes `group` this thread's default; with null the thread uses the process's default group.
  explicit ThreadProcessGroupGuard(std::shared_ptr<ProcessGroup> group);
  ~ThreadProcessGroupGuard();
  ThreadProcessGroupGuard(const ThreadProcessGroupGuard&) = delete;
  ThreadProcessGroupGuard& operator=(const ThreadProcessGroupGuard&) = delete;

 private:
  std::shared_ptr<ProcessGroup> previous_;
};

/// Makes a process group that is not the default. Collective over its ranks. Throws what init_process_group throws.
///
///     options.process_group = fsdp::new_process_group({.rank = r, .world_size = 2, .store = store});
std::shared_ptr<ProcessGroup> new_process_group(ProcessGroupOptions options);

/// Returns this rank's number in the default group, from 0. Any thread may call this function. Throws UsageError before
/// init_process_group().
int rank();
/// Returns the number of ranks of the default group. Any thread may call this function. Throws UsageError before
/// init_process_group().
int world_size();
/// Returns this rank's number among the ranks of its host, from 0. Any thread may call this function. Throws UsageError
/// before init_process_group().
int local_rank();
/// Waits until every rank of the default group has called this function. Collective. Throws what Work::wait throws.
void barrier();

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
