#pragma once
/// \file
/// The line that says how far training is.

#include <fsdp/group.h>

#include <chrono>
#include <optional>
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
  struct Options {
    int64_t steps = 0;           ///< of the whole training
    int64_t first = 0;           ///< of them, those that were done before
    int64_t items_per_step = 0;  ///< of all ranks
    std::string items = "tokens";
    /// Between lines where there is no such terminal; none: no line of progress there, notes only.
    std::optional<double> seconds_between_lines = std::nullopt;
    bool is_silent = false;  ///< prints nothing
  };

  explicit Progress(Options options);
  /// Ends the line that an error leaves open.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Whether `show` would print now, so that figures nobody sees need not be taken.
  bool is_due(int64_t step) const;
  void show(const StepReport& report);
  /// A line that stays, in the place of the one that is written again. Time from `pause` to here is no training time.
  void note(const std::string& line);
  /// Stops the clock, e.g. for a validation.
  void pause();

  /// Seconds of training so far.
  double seconds() const;

 private:
  using Clock = std::chrono::steady_clock;

  /// Whether one line is written again and again.
  bool is_live() const { return is_terminal_ || launchers_columns_ > 0; }
  bool shows() const { return !options_.is_silent && (is_live() || options_.seconds_between_lines.has_value()); }
  double items_per_second(int64_t step) const;
  std::string line_text(const StepReport& report) const;

  const Options options_;
  const bool is_terminal_;
  const size_t launchers_columns_;  // 0: it is not behind a launcher that writes to a terminal
  Clock::time_point started_ = Clock::now();
  std::chrono::duration<double> earlier_{0};
  bool is_paused_ = false;
  double shown_at_ = 0;
  int64_t shown_step_ = options_.first;
  bool is_line_open_ = false;  // the cursor stands in a line that would be written again
};

}  // namespace fsdp::train
