#pragma once
/// \file
/// Environment variables of ranks, and the port of the ranks' store.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/posix/descriptor.h"

namespace fsdp {

/// The greatest number of columns of a line that the rank prints. The launcher sets this variable if it passes the
/// rank's output to a terminal. A line that ends with "\r" is then overwritten by the rank's next line.
inline constexpr const char* kTerminalColumnsVariable = "FSDP_TERMINAL_COLUMNS";

/// Set for a rank if the launcher counts the signals that ask the job to end. See Note [Two requests to end] in
/// end_requests.h.
inline constexpr const char* kCountsSignalsVariable = "FSDP_LAUNCHER_COUNTS_SIGNALS";

/// Names and values of environment variables. A variable without a value is removed from the environment.
using Variables = std::map<std::string, std::optional<std::string>>;

/// A rank's numbers, and the address of the store, which rank 0 hosts.
struct RankPlace {
  int rank = 0, world_size = 1;
  int local_rank = 0, local_world_size = 1;
  std::string host = "127.0.0.1";
  int port = 0;
  /// True if the launcher counts the requests to end and kills the rank at the second one. If false, the rank itself
  /// counts.
  bool counts_signals = false;
};
/// Returns the variables that describe `place`. Variables that torchrun may have set for another store are among them,
/// without a value.
Variables variables_of(const RankPlace& place);

/// Returns this process's environment, changed by `variables`, as texts "NAME=value".
std::vector<std::string> environment_with(const Variables& variables);
/// Changes this process's environment.
void set_variables(const Variables& variables);

/// A TCP port of this host that is reserved for a store while this object exists. The object's socket is bound with
/// SO_REUSEADDR and does not listen. The kernel therefore gives the port to no socket that asks for any free port, but
/// a socket that asks for this port and sets SO_REUSEADDR, as every store does, can listen on it.
class HeldPort {
 public:
  /// Throws Error if no port is free.
  HeldPort();
  int number() const { return number_; }

 private:
  Descriptor socket_;
  int number_ = 0;
};
/// Returns the number of processors that this process may use.
int count_processors();

}  // namespace fsdp
