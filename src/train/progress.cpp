#include "train/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <sstream>

#include "launch/variables.h"
#include "train/bytes_text.h"

namespace fsdp::train {
namespace {

constexpr double kSecondsBetweenRewrites = 0.25;
constexpr const char* kEraseLine = "\r\x1b[K";
constexpr const char* kEraseRest = "\x1b[K";

std::string time_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::lround(seconds));
  char text[32];
  std::snprintf(text, sizeof(text), "%ld:%02ld", static_cast<long>(whole / 60), static_cast<long>(whole % 60));
  return text;
}

std::string line_text(const StepReport& report, int64_t steps, double tokens_per_second, double seconds_left) {
  std::ostringstream text;
  text << std::fixed << "step " << report.step << '/' << steps << "  loss " << std::setprecision(3) << report.loss
       << "  " << std::setprecision(0) << tokens_per_second << " tokens/s  " << time_text(seconds_left)
       << " left  rows " << bytes_text(report.memory.rows.current) << ", whole at most "
       << bytes_text(report.memory.whole.peak) << ", gradients " << bytes_text(report.memory.gradient.current)
       << ", optimizer " << bytes_text(report.memory.optimizer.current);
  return text.str();
}

/// Columns that the launcher's terminal has for a line of this rank; 0: what it prints goes to no such terminal.
size_t launchers_columns() {
  const char* said = std::getenv(kTerminalColumnsVariable);
  return said == nullptr ? 0 : std::strtoul(said, nullptr, 10);
}

/// Columns of the terminal on stdout; many if it does not tell.
size_t terminal_width() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 1000;
}

}  // namespace

Progress::Progress(int64_t steps, int64_t tokens_per_step, double seconds_between_lines, bool is_silent, int64_t first)
    : steps_(steps),
      tokens_per_step_(tokens_per_step),
      first_(first),
      is_silent_(is_silent),
      is_terminal_(isatty(STDOUT_FILENO) != 0),
      launchers_columns_(is_terminal_ ? 0 : launchers_columns()),
      seconds_between_(is_live() ? kSecondsBetweenRewrites : seconds_between_lines) {}

double Progress::seconds() const {
  const std::chrono::duration<double> current = is_paused_ ? Clock::duration(0) : Clock::now() - started_;
  return (earlier_ + current).count();
}

bool Progress::is_due(int64_t step) const {
  return !is_silent_ && (step == first_ + 1 || step == steps_ || seconds() - shown_at_ >= seconds_between_);
}

double Progress::tokens_per_second(int64_t step) const {
  return static_cast<double>((step - shown_step_) * tokens_per_step_) / (seconds() - shown_at_);
}

void Progress::show(const StepReport& report) {
  if (is_silent_) return;
  const double left = seconds() / static_cast<double>(report.step - first_) * static_cast<double>(steps_ - report.step);
  const std::string line = line_text(report, steps_, tokens_per_second(report.step), left);
  if (is_terminal_) {
    // A line that wraps could not be written again.
    std::cout << kEraseLine << line.substr(0, terminal_width() - 1) << std::flush;
  } else if (is_live()) {
    std::cout << line.substr(0, launchers_columns_ - 1) << kEraseRest << '\r' << std::flush;
  } else {
    std::cout << line << std::endl;
  }
  shown_at_ = seconds();
  shown_step_ = report.step;
}

void Progress::pause() {
  earlier_ = std::chrono::duration<double>(seconds());
  is_paused_ = true;
}

void Progress::note(const std::string& line) {
  if (!is_silent_) std::cout << (is_live() ? "\n" : "") << line << std::endl;
  if (is_paused_) started_ = Clock::now();
  is_paused_ = false;
}

}  // namespace fsdp::train
