#pragma once
/// \file
/// Environment variables of ranks, and the port at which ranks meet.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/posix/descriptor.h"

namespace fsdp {

/// Set for a rank whose output a launcher passes to a terminal: the number of columns that one of its lines may have.
/// If a line ends with "\r", the launcher replaces it by the next one.
inline constexpr const char* kTerminalColumnsVariable = "FSDP_TERMINAL_COLUMNS";

/// Set for a rank whose launcher counts the signals that ask the job to end. See Note [Two requests to end].
inline constexpr const char* kCountsSignalsVariable = "FSDP_LAUNCHER_COUNTS_SIGNALS";

/// Names and values; a variable without a value is unset.
using Variables = std::map<std::string, std::optional<std::string>>;

/// A rank's number among the ranks, and the address of the store that rank 0 hosts.
struct RankPlace {
  int rank = 0, world_size = 1;
  int local_rank = 0, local_world_size = 1;
  std::string host = "127.0.0.1";
  int port = 0;
  /// Whether the launcher counts requests to end and kills the rank at the second one; otherwise the rank itself
  /// counts.
  bool counts_signals = false;
};
/// The variables that describe `place`. They unset what torchrun may have set for another store.
Variables variables_of(const RankPlace& place);

/// This process's environment, changed by `variables`, as "NAME=value".
std::vector<std::string> environment_with(const Variables& variables);
/// Changes this process's environment.
void set_variables(const Variables& variables);

/// A TCP port of this host that is reserved while this object lives, and on which a store can listen meanwhile. The
/// socket is bound with SO_REUSEADDR and does not listen: the kernel then assigns the port to no other socket, but lets
/// a socket that names the port and sets SO_REUSEADDR, as every store does, listen on it.
class HeldPort {
 public:
  /// Throws Error if no port is free.
  HeldPort();
  int number() const { return number_; }

 private:
  Descriptor socket_;
  int number_ = 0;
};
/// The number of processors that this process may use.
int count_processors();

}  // namespace fsdp
