#pragma once
/// \file
/// What a launcher tells a rank through environment variables.

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace fsdp {

/// A rank's place among the ranks, and where they meet.
struct RendezvousParameters {
  int rank = 0;
  int world_size = 1;
  /// Rank among the ranks of this host.
  int local_rank = 0;
  /// Where the store listens. Without brackets if it is an IPv6 address.
  std::string host;
  uint16_t port = 0;
  /// The launcher hosts the store, so rank 0 must not. If not, rank 0 hosts it.
  bool agent_hosts_store = false;
  /// How often the launcher has restarted the ranks. A store that the launcher hosts can outlive
  /// them: the keys of each attempt need a prefix of their own.
  int attempt = 0;
  /// The launcher's name for the run, the same on every rank.
  std::string run_id = "none";
};

/// The key under which the store has the run_id of the run that came first.
inline constexpr const char* kRunKey = "fsdp/run";

using EnvironmentLookup = std::function<const char*(const char*)>;

/// Reads the variables of the first launcher of this list that set any of its own; an empty variable counts as not set:
///
/// 1. torchrun, fsdprun: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. All five are needed, except that
///    LOCAL_RANK may be left out with one rank, or where MASTER_ADDR is the loopback device: it is RANK then;
/// 2. Open MPI: OMPI_COMM_WORLD_RANK, _SIZE and _LOCAL_RANK;
/// 3. PMI (MPICH, Intel MPI, Cray): PMI_RANK, PMI_SIZE, and one of MPI_LOCALRANKID, PMI_LOCAL_RANK and SLURM_LOCALID;
/// 4. Slurm: SLURM_PROCID, SLURM_STEP_NUM_TASKS (or SLURM_NTASKS) and SLURM_LOCALID, only inside a step, which srun
///    marks with SLURM_STEP_ID: a program in the shell of sbatch and salloc is one process and gets one rank.
///
/// Lists 2 to 4 take the address from MASTER_ADDR, else from the first host of SLURM_STEP_NODELIST or
/// SLURM_JOB_NODELIST, else it is this host if all ranks are on it; and the port from MASTER_PORT, else 29500.
///
/// Returns nullopt if no launcher set anything. Throws UsageError naming the variable that is missing or wrong.
std::optional<RendezvousParameters> rendezvous_from_environment(
    const EnvironmentLookup& lookup = [](const char* name) -> const char* { return std::getenv(name); });

/// "::1" for "[::1]", as an IPv6 address is written in front of a port.
std::string without_brackets(const std::string& host);

/// The first host of a Slurm node list: "node[03-05,9],other7" gives "node03". nullopt if `hosts` is
/// not such a list.
std::optional<std::string> first_slurm_host(std::string_view hosts);

}  // namespace fsdp
