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

/// Prints progress to stdout: on a terminal, also behind a launcher that reports one (fsdp::kTerminalColumnsVariable),
/// one line that is overwritten; otherwise a line every few seconds.
class Progress {
 public:
  struct Options {
    int64_t steps = 0;           ///< number of steps of the whole training
    int64_t first = 0;           ///< number of steps that an earlier run completed
    int64_t items_per_step = 0;  ///< of all ranks
    std::string items = "tokens";
    /// Time between lines if there is no terminal; unset: only notes are printed there.
    std::optional<double> seconds_between_lines = std::nullopt;
    bool is_silent = false;  ///< whether nothing is printed
  };

  explicit Progress(Options options);
  /// Ends a line that is still open, for example because of an exception.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Whether `show` would print now; if not, there is no need to compute its numbers.
  bool is_due(int64_t step) const;
  void show(const StepReport& report);
  /// Prints a permanent line instead of the progress line. Restarts the clock after `pause`.
  void note(const std::string& line);
  /// Stops the clock, for example for a validation.
  void pause();

  /// Seconds of training so far, without pauses.
  double seconds() const;

 private:
  using Clock = std::chrono::steady_clock;

  /// Whether the progress line is overwritten.
  bool is_live() const { return is_terminal_ || launchers_columns_ > 0; }
  bool shows() const { return !options_.is_silent && (is_live() || options_.seconds_between_lines.has_value()); }
  double items_per_second(int64_t step) const;
  std::string line_text(const StepReport& report) const;

  const Options options_;
  const bool is_terminal_;
  const size_t launchers_columns_;  // 0: there is no launcher with a terminal
  Clock::time_point started_ = Clock::now();
  std::chrono::duration<double> earlier_{0};
  bool is_paused_ = false;
  double shown_at_ = 0;
  int64_t shown_step_ = options_.first;
  bool is_line_open_ = false;  // whether the cursor is in a line that can be overwritten
};

}  // namespace frame
