#pragma once
/// \file
/// Separates the launcher's own child processes from foreign ones.

#include <functional>

namespace fsdprun {

/// Runs `act` in a process all of whose descendants `act` itself has started, and returns its result.
///
/// This process can have foreign children if a shell with children became it by exec, or if it is the first process of
/// a container. In these cases `act` runs in a fork. This process then passes signals on to the fork and returns its
/// exit status. No other thread may run yet.
int with_own_children_only(const std::function<int()>& act);

}  // namespace fsdprun
