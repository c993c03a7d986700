#pragma once
/// \file
/// Interpretation of signals that ask a job to end.

#include <chrono>

namespace fsdp {

// Note [Two requests to end]
// The first signal, such as Ctrl-C, asks a training to save and stop, which takes a step and a checkpoint, or for ever
// if a step hangs. The second signal ends the job at once. One process counts the signals: the launcher or fsdp::spawn,
// which pass the first one on to the ranks and kill them at the second; without these, the rank itself. A rank that
// does not count may receive one request several times, since Ctrl-C also reaches it directly.

/// Whether a signal is a second request, given the time since the first. A signal that follows sooner belongs to the
/// same request: timeout(1) signals both the process and its process group.
constexpr bool is_second_request(std::chrono::steady_clock::duration since_first) {
  return since_first > std::chrono::milliseconds(300);
}

}  // namespace fsdp
