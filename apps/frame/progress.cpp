#include "frame/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <utility>

#include "comm/core/text.h"
#include "frame/bytes_text.h"
#include "launch/variables.h"

namespace frame {
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

/// Returns the number of columns of the launcher's terminal, or 0 if the launcher does not pass output to a terminal.
size_t launchers_columns() {
  const char* said = std::getenv(fsdp::kTerminalColumnsVariable);
  return said == nullptr ? 0 : std::strtoul(said, nullptr, 10);
}

/// Returns the number of columns of the terminal on stdout, or a large number if it is unknown.
size_t terminal_width() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 1000;
}

}  // namespace

Progress::Progress(Options options)
    : options_(std::move(options)),
      is_terminal_(isatty(STDOUT_FILENO) != 0),
      launchers_columns_(is_terminal_ ? 0 : launchers_columns()) {}

Progress::~Progress() {
  if (is_line_open_ && is_terminal_) std::fputs("\n", stdout);
}

double Progress::seconds() const {
  const std::chrono::duration<double> current = is_paused_ ? Clock::duration(0) : Clock::now() - started_;
  return (earlier_ + current).count();
}

bool Progress::is_due(int64_t step) const {
  if (!shows()) return false;
  const double between = is_live() ? kSecondsBetweenRewrites : *options_.seconds_between_lines;
  return step == options_.first + 1 || step == options_.steps || seconds() - shown_at_ >= between;
}

double Progress::items_per_second(int64_t step) const {
  return static_cast<double>((step - shown_step_) * options_.items_per_step) / (seconds() - shown_at_);
}

std::string Progress::line_text(const StepReport& report) const {
  const int64_t done = report.step - options_.first, left = options_.steps - report.step;
  fsdp::TextWriter text;
  text << std::fixed << "step " << report.step << '/' << options_.steps << "  loss " << std::setprecision(3)
       << report.loss << "  " << std::setprecision(0) << items_per_second(report.step) << ' ' << options_.items
       << "/s  " << time_text(seconds() / static_cast<double>(done) * static_cast<double>(left)) << " left  rows "
       << bytes_text(report.memory.rows.current) << ", whole at most " << bytes_text(report.memory.whole.peak)
       << ", gradients " << bytes_text(report.memory.gradient.current) << ", optimizer "
       << bytes_text(report.memory.optimizer.current);
  return text.str();
}

void Progress::show(const StepReport& report) {
  if (!shows()) return;
  const std::string line = line_text(report);
  if (is_terminal_) {
    // The line is cut to the terminal's width, because a wrapped line could not be overwritten.
    std::cout << kEraseLine << line.substr(0, terminal_width() - 1) << std::flush;
  } else if (is_live()) {
    std::cout << line.substr(0, launchers_columns_ - 1) << kEraseRest << '\r' << std::flush;
  } else {
    std::cout << line << std::endl;
  }
  is_line_open_ = is_live();
  shown_at_ = seconds();
  shown_step_ = report.step;
}

void Progress::pause() {
  earlier_ = std::chrono::duration<double>(seconds());
  is_paused_ = true;
}

void Progress::note(const std::string& line) {
  if (!options_.is_silent) {
    const bool is_over_another = std::exchange(is_line_open_, false);
    std::cout << (is_over_another && is_terminal_ ? kEraseLine : "") << line
              << (is_over_another && !is_terminal_ ? kEraseRest : "") << std::endl;
  }
  if (is_paused_) started_ = Clock::now();
  is_paused_ = false;
}

}  // namespace frame
