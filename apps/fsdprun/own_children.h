#pragma once
/// \file
/// Which processes below the launcher are its own.

#include <functional>

namespace fsdprun {

/// Runs `act` in a process below which there is nothing that it did not start, and returns its result.
///
/// That is this process, unless it has children already, since a shell that had started some became it, or may get
/// foreign ones, since it is the first process of a container. Then it is a fork: this process passes signals on to it
/// and ends as it does. Call before this process has started threads.
int with_own_children_only(const std::function<int()>& act);

}  // namespace fsdprun
