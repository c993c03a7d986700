#pragma once
/// \file
/// One rank while it runs and after it ended.

#include <sys/types.h>

#include <list>
#include <optional>
#include <string>
#include <vector>

#include "output.h"

namespace fsdprun {

/// How a process ended, as waitid tells it.
class ExitStatus {
 public:
  static ExitStatus from_wait(int status);

  bool is_failure() const { return signal_ != 0 || code_ != 0; }
  bool is_signal() const { return signal_ != 0; }
  /// As a shell reports it: 128 + number for a signal.
  int shell_code() const;
  /// "exited with code 3", "was killed by SIGSEGV".
  std::string describe() const;

 private:
  int code_ = 0;
  int signal_ = 0;
};

struct Rank {
  int number = 0;
  int local_number = 0;
  pid_t pid = 0;
  /// Empty if the rank writes where the launcher does; else stdout and stderr.
  std::list<RankStream> streams;
  /// Unset while it runs.
  std::optional<ExitStatus> status;

  bool is_running() const { return !status; }
  /// To the rank and what it started.
  void send(int signal) const;
  /// What an uncaught exception said first.
  std::vector<std::string> last_error_lines() const;
};

}  // namespace fsdprun
