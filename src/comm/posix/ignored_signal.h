#pragma once
/// \file
/// Signals that whoever started this process wants it to ignore.

#include <signal.h>

namespace fsdp {

/// Whether the process ignores the signal. One that it ignored from its start, as after nohup or in the background of
/// a script, was not meant for it, so nobody handles it or blocks it: a blocked signal waits although it is ignored.
inline bool is_ignored(int signal) {
  struct sigaction action{};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace fsdp
