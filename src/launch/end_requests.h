#pragma once
/// \file
/// What signals that ask a job to end mean.

#include <chrono>

namespace fsdp {

// Note [Two requests to end]
// The first signal, e.g. of Ctrl-C, asks a training to save and to stop, which takes as long as a step and a
// checkpoint, or for ever where a step never ends. The second one ends the job at once. One process counts them: the
// launcher or fsdp::spawn, which pass the first one on to the ranks and kill them at the second, or else the rank
// itself. A rank that another process counts for may get one request several times, since Ctrl-C reaches it too.

/// Whether a signal that came so long after the first request is a second one. Before that it is the same request:
/// timeout(1) sends its signal to the process and to its group.
constexpr bool is_second_request(std::chrono::steady_clock::duration since_first) {
  return since_first > std::chrono::milliseconds(300);
}

}  // namespace fsdp
