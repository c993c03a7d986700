#include <fsdp/scalar_log.h>

#include <fsdp/error.h>
#include <fsdp/process_group.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "comm/core/check.h"
#include "train/event_file.h"

namespace fsdp {
namespace {

using Clock = std::chrono::system_clock;

double seconds_since_1970() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

// Of its own in the folder; TensorBoard looks for the words in the middle.
std::string event_file_in(const std::string& folder) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return str_cat(folder, "/events.out.tfevents.", static_cast<int64_t>(seconds_since_1970()), '.', host.data(), '.',
                 getpid(), ".0");
}

void append(std::ofstream& file, const std::string& path, const std::string& bytes) {
  file << bytes << std::flush;
  if (!file)
    throw Error(str_cat("[fsdp] metrics: '", path, "' cannot be written. Name a file in an existing folder with room"));
}

}  // namespace

struct ScalarLog::State {
  ScalarLogOptions options;
  std::string event_path = {};
  std::ofstream lines = {}, events = {};
  std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();
};

ScalarLog::ScalarLog(const ScalarLogOptions& options) {
  if (rank() != 0 || (options.json_lines.empty() && options.tensorboard.empty())) return;
  state_ = std::make_unique<State>(State{options});
  if (!options.json_lines.empty()) {
    state_->lines.open(options.json_lines, options.appends ? std::ios::app : std::ios::trunc);
    append(state_->lines, options.json_lines, "");
  }
  if (options.tensorboard.empty()) return;
  std::error_code exists_or_fails;
  std::filesystem::create_directories(options.tensorboard, exists_or_fails);
  state_->event_path = event_file_in(options.tensorboard);
  state_->events.open(state_->event_path, std::ios::binary);
  append(state_->events, state_->event_path, train::event_record(train::first_event(seconds_since_1970())));
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
    append(state_->lines, state_->options.json_lines,
           line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n');
  }
  if (state_->events.is_open())
    append(state_->events, state_->event_path,
           train::event_record(train::scalars_event(seconds_since_1970(), step, scalars)));
}

}  // namespace fsdp
