#pragma once
/// \file
/// The line that says how far training is.

#include <fsdp/group.h>

#include <chrono>
#include <string>

namespace fsdp::train {

/// What the line shows of one step.
struct StepReport {
  int64_t step = 0;  ///< steps done
  double loss = 0;
  GroupStats memory;
};

/// Prints to stdout: one line that is written again and again on a terminal, also behind a launcher that says that it
/// has one (kTerminalColumnsVariable); a line every few seconds elsewhere.
class Progress {
 public:
  /// `tokens_per_step`: of all ranks. A silent one prints nothing. `first`: steps that were done before.
  Progress(int64_t steps, int64_t tokens_per_step, double seconds_between_lines, bool is_silent, int64_t first = 0);

  /// Whether `show` would print now, so that figures nobody sees need not be taken.
  bool is_due(int64_t step) const;
  void show(const StepReport& report);
  /// A line of its own, after which progress goes on. Time from `pause` to here is no training time.
  void note(const std::string& line);
  /// Stops the clock, e.g. for a validation.
  void pause();

  /// Seconds of training so far.
  double seconds() const;

 private:
  using Clock = std::chrono::steady_clock;

  /// Whether one line is written again and again.
  bool is_live() const { return is_terminal_ || launchers_columns_ > 0; }
  double tokens_per_second(int64_t step) const;

  const int64_t steps_, tokens_per_step_, first_;
  const bool is_silent_, is_terminal_;
  const size_t launchers_columns_;  // 0: it is not behind a launcher that writes to a terminal
  const double seconds_between_;
  Clock::time_point started_ = Clock::now();
  std::chrono::duration<double> earlier_{0};
  bool is_paused_ = false;
  double shown_at_ = 0;
  int64_t shown_step_ = first_;
};

}  // namespace fsdp::train
