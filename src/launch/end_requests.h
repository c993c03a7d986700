#pragma once
/// \file
/// Interpretation of signals that ask a job to end.

#include <chrono>

namespace fsdp {

// Note [Two requests to end]
// The first signal, such as that of Ctrl-C, asks a training to save and stop. This takes as long as a step and a
// checkpoint, or forever if the step hangs. The second signal ends the job at once. The process that started the ranks
// (the launcher, or the one that called fsdp::spawn with passes_signals_on) counts the signals: it passes the first one
// on to the ranks and kills them at the second. If there is no such process, the rank itself counts. A rank that does
// not count can receive one Ctrl-C twice: from the terminal and from the process that counts.

/// Returns true if a signal is a second request, given the time since the first signal. A signal that follows within
/// 300 ms belongs to the first request: timeout(1), for example, signals the process and then its process group.
constexpr bool is_second_request(std::chrono::steady_clock::duration since_first) {
  return since_first > std::chrono::milliseconds(300);
}

}  // namespace fsdp
