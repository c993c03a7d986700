#pragma once
/// \file
/// What ranks find in their environment, and where they can meet.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/posix/descriptor.h"

namespace fsdp {

/// Of a rank whose output goes through a launcher to a terminal: columns of one of its lines. A line that ends with
/// "\r" is then written again by the next one.
inline constexpr const char* kTerminalColumnsVariable = "FSDP_TERMINAL_COLUMNS";

/// A rank has this variable if its launcher counts the signals that ask the job to end. See Note [Two requests to end].
inline constexpr const char* kCountsSignalsVariable = "FSDP_LAUNCHER_COUNTS_SIGNALS";

/// Names and values; without a value the variable is not set.
using Variables = std::map<std::string, std::optional<std::string>>;

/// A rank's place among the ranks, and where rank 0 hosts the store.
struct RankPlace {
  int rank = 0, world_size = 1;
  int local_rank = 0, local_world_size = 1;
  std::string host = "127.0.0.1";
  int port = 0;
  /// Whether the launcher counts requests to end and kills the rank at the second one; otherwise the rank counts.
  bool counts_signals = false;
};
/// Without what a launcher of this process left about another store.
Variables variables_of(const RankPlace& place);

/// This process's environment with `variables`, each as "NAME=value".
std::vector<std::string> environment_with(const Variables& variables);
/// Changes this process's environment.
void set_variables(const Variables& variables);

/// A TCP port of this host that nobody else is given as long as this lives, and that a store can listen on meanwhile.
/// It is bound with SO_REUSEADDR and does not listen: the kernel then gives it to nobody who asks for any port, and
/// lets listen who names it and says SO_REUSEADDR too, as every store does.
class HeldPort {
 public:
  /// Throws Error if there is none.
  HeldPort();
  int number() const { return number_; }

 private:
  Descriptor socket_;
  int number_ = 0;
};
/// Those that this process may use.
int count_processors();

}  // namespace fsdp
