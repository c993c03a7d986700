#include <fsdp/scalar_log.h>

#include <fsdp/process_group.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "train/event_file.h"
#include "train/log_file.h"

namespace fsdp {
namespace {

using Clock = std::chrono::system_clock;

double seconds_since_1970() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

// Creates a new event file in the folder. The number at the end makes its name unique. TensorBoard looks for names that
// contain "tfevents".
train::LogFile new_event_file(const std::string& folder) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const auto seconds = static_cast<int64_t>(seconds_since_1970());
  const auto name = folder + "/events.out.tfevents." + std::to_string(seconds) + "." + host.data() + "." +
                    std::to_string(getpid()) + ".";
  for (int number = 0;; ++number)
    if (train::LogFile file(name + std::to_string(number), train::LogFile::Begin::kNew); file.is_open()) return file;
}

}  // namespace

struct ScalarLog::State {
  train::LogFile lines = {}, events = {};
  std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();
};

ScalarLog::ScalarLog(const ScalarLogOptions& options) {
  if (rank() != 0 || (options.json_lines.empty() && options.tensorboard.empty())) return;
  state_ = std::make_unique<State>();
  using Begin = train::LogFile::Begin;
  if (!options.json_lines.empty())
    state_->lines = train::LogFile(options.json_lines, options.appends ? Begin::kBehind : Begin::kAnew);
  if (options.tensorboard.empty()) return;
  std::error_code exists_or_fails;
  std::filesystem::create_directories(options.tensorboard, exists_or_fails);
  state_->events = new_event_file(options.tensorboard);
  state_->events.append(train::event_record(train::first_event(seconds_since_1970())));
}

ScalarLog::~ScalarLog() = default;
ScalarLog::ScalarLog(ScalarLog&&) noexcept = default;
ScalarLog& ScalarLog::operator=(ScalarLog&&) noexcept = default;

bool ScalarLog::is_on() const { return state_ != nullptr; }

void ScalarLog::write(int64_t step, const Scalars& scalars) {
  if (!is_on()) return;
  if (state_->lines.is_open()) {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - state_->begun;
    nlohmann::ordered_json line{{"step", step}, {"seconds", std::round(seconds.count() * 1e6) / 1e6}};
    for (const auto& [name, number] : scalars) line[name] = number;
    state_->lines.append(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n');
  }
  if (state_->events.is_open())
    state_->events.append(train::event_record(train::scalars_event(seconds_since_1970(), step, scalars)));
}

}  // namespace fsdp
