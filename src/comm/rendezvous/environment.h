#pragma once
/// \file
/// The environment variables in which a launcher tells a rank its place.

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp {

/// A rank's place among the ranks, and the address at which the ranks meet.
struct RendezvousParameters {
  int rank = 0;
  int world_size = 1;
  /// This rank's number among the ranks of its host.
  int local_rank = 0;
  /// The host at which the store listens; an IPv6 address has no brackets here.
  std::string host;
  uint16_t port = 0;
  /// True if the launcher hosts the store; otherwise rank 0 does.
  bool agent_hosts_store = false;
  /// The number of times that the launcher has restarted the ranks. A store that the launcher hosts can outlive the
  /// ranks, so the keys of each attempt have their own prefix.
  int attempt = 0;
  /// The launcher's name for the run, which is the same on every rank.
  std::string run_id = "none";
};

/// The key under which the store holds the run_id of the first rank that came to it.
inline constexpr const char* kRunKey = "fsdp/run";

using EnvironmentLookup = std::function<const char*(const char*)>;

/// Reads the variables of the first launcher in this list that set any variable of its own. An empty variable counts as
/// not set.
///
/// 1. torchrun, fsdprun: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. All five are needed, except
///    LOCAL_RANK if there is one rank or MASTER_ADDR is the loopback device: RANK then stands for it;
/// 2. Open MPI: OMPI_COMM_WORLD_RANK, _SIZE and _LOCAL_RANK;
/// 3. PMI (MPICH, Intel MPI, Cray): PMI_RANK, PMI_SIZE, and one of MPI_LOCALRANKID, PMI_LOCAL_RANK and SLURM_LOCALID;
/// 4. Slurm: SLURM_PROCID, SLURM_STEP_NUM_TASKS (or SLURM_NTASKS) and SLURM_LOCALID, only inside a step, which srun
///    marks with SLURM_STEP_ID. A program in the shell of sbatch or salloc is one process and gets one rank.
///
/// With launchers 2 to 4, the host is MASTER_ADDR; if that is not set, the first host of SLURM_STEP_NODELIST or
/// SLURM_JOB_NODELIST; if these are not set either, this host, provided that all ranks are on it. The port is
/// MASTER_PORT, or 29500 if that is not set.
///
/// Returns nullopt if no launcher set anything. Throws UsageError with the name of a variable that is missing or wrong.
std::optional<RendezvousParameters> rendezvous_from_environment(
    const EnvironmentLookup& lookup = [](const char* name) -> const char* { return std::getenv(name); });

/// Removes the brackets with which an IPv6 address is written in front of a port: "::1" for "[::1]".
std::string without_brackets(const std::string& host);

/// Returns the first host of a Slurm node list: "node03" for "node[03-05,9],other7". Returns nullopt if `hosts` is not
/// such a list.
std::optional<std::string> first_slurm_host(std::string_view hosts);

}  // namespace fsdp
