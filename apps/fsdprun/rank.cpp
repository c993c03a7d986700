#include "rank.h"

#include <signal.h>

namespace fsdprun {

void Rank::send(int signal) const {
  if (is_running()) kill(-pid, signal);
}

std::vector<std::string> Rank::last_error_lines() const {
  if (streams.empty()) return {};
  return streams.back().last_lines();
}

}  // namespace fsdprun
