#pragma once
/// \file
/// Interpretation of signals that ask a job to end.

#include <chrono>

namespace fsdp {

// Note [Two requests to end]
// The first signal, such as that of Ctrl-C, asks a training to save and stop. This takes a step and a checkpoint, or
// for ever if a step hangs. The second signal ends the job at once. One process counts the signals. If the launcher or
// fsdp::spawn has started the ranks, it counts: it passes the first signal on to the ranks and kills them at the
// second. Otherwise the rank itself counts. A rank that does not count may receive one request several times, because
// Ctrl-C reaches it directly as well.

/// Returns true if a signal is a second request, given the time since the first one. A signal that follows sooner
/// belongs to the first request, because timeout(1) sends a signal to the process and then to its process group.
constexpr bool is_second_request(std::chrono::steady_clock::duration since_first) {
  return since_first > std::chrono::milliseconds(300);
}

}  // namespace fsdp
