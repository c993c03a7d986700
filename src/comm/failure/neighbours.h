#pragma once
/// \file
/// The processes of other ranks on this host, as the kernel sees them.

#include <string>
#include <vector>

#include "comm/core/ranks.h"
#include "comm/posix/descriptor.h"

namespace fsdp {

/// What a rank tells the others about its process.
std::string own_process_name();

/// Connections tell of a rank's death unless a child that it forked lives on and keeps them open; this does always.
class Neighbours {
 public:
  /// `names[r]`: what rank r says of its process. Those on other hosts or in other process namespaces are not watched,
  /// nor is this process itself; and none where the kernel or a sandbox has no descriptors for processes.
  Neighbours(const std::vector<std::string>& names, const Ranks& ranks);

  bool empty() const { return watched_.empty(); }
  /// Blocks until a process ends; the global ranks of those that have since the last call. None once the descriptor
  /// `stop` can be read. Thread safety: one thread.
  std::vector<int> wait(int stop);

 private:
  struct Watched {
    int rank;
    Descriptor process;
  };
  std::vector<Watched> watched_;
};

}  // namespace fsdp
