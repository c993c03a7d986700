#pragma once
/// \file
/// The progress line of a training.

#include <fsdp/group.h>

#include <chrono>
#include <optional>
#include <string>

namespace frame {

/// The numbers of one step that the line shows.
struct StepReport {
  int64_t step = 0;  ///< number of completed steps
  double loss = 0;
  fsdp::GroupStats memory;
};

/// Prints the progress of a training to stdout. If stdout is a terminal, or if a launcher passes the output to a
/// terminal (fsdp::kTerminalColumnsVariable), the progress is one line that is overwritten. Otherwise a new line is
/// printed from time to time.
class Progress {
 public:
  struct Options {
    int64_t steps = 0;           ///< number of steps of the whole training
    int64_t first = 0;           ///< number of steps that an earlier run completed
    int64_t items_per_step = 0;  ///< number of items that all ranks together process in a step
    std::string items = "tokens";
    /// Seconds between lines if there is no terminal. If not set, only notes are printed without a terminal.
    std::optional<double> seconds_between_lines = std::nullopt;
    bool is_silent = false;  ///< true if this rank prints nothing
  };

  explicit Progress(Options options);
  /// Ends the progress line if it is still open, for example because of an exception.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Returns true if it is time to call `show`. Otherwise there is no need to compute the numbers of the report.
  bool is_due(int64_t step) const;
  void show(const StepReport& report);
  /// Replaces the progress line by a line that stays. Restarts the clock if `pause` has stopped it.
  void note(const std::string& line);
  /// Stops the clock, for example for a validation.
  void pause();

  /// Returns the seconds of training so far, without pauses.
  double seconds() const;

 private:
  using Clock = std::chrono::steady_clock;

  /// Returns true if the progress line is overwritten.
  bool is_live() const { return is_terminal_ || launchers_columns_ > 0; }
  bool shows() const { return !options_.is_silent && (is_live() || options_.seconds_between_lines.has_value()); }
  double items_per_second(int64_t step) const;
  std::string line_text(const StepReport& report) const;

  const Options options_;
  const bool is_terminal_;
  const size_t launchers_columns_;  // columns of the launcher's terminal; 0 if there is none
  Clock::time_point started_ = Clock::now();
  std::chrono::duration<double> earlier_{0};
  bool is_paused_ = false;
  double shown_at_ = 0;
  int64_t shown_step_ = options_.first;
  bool is_line_open_ = false;  // true if the cursor is in a line that can be overwritten
};

}  // namespace frame
