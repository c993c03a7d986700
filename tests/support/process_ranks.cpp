#include "support/process_ranks.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <torch/utils.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <sstream>
#include <thread>

#include "comm/posix/descriptor.h"
#include "launch/execution.h"
#include "launch/variables.h"
#include "support/backend.h"

namespace fsdp::test {
namespace {

constexpr const char* kCaseVariable = "FSDP_TEST_CASE";
constexpr std::chrono::milliseconds kStep{20};

std::map<std::string, std::function<void()>>& cases() {
  static std::map<std::string, std::function<void()>> all;
  return all;
}

bool has_one_thread() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  return std::distance(begin(threads), end(threads)) == 1;
}

}  // namespace

ProcessCase::ProcessCase(const std::string& name, std::function<void()> run) {
  TORCH_CHECK(cases().emplace(name, std::move(run)).second, "two cases named ", name);
}

int run_process_case() {
  const char* name = std::getenv(kCaseVariable);
  if (name == nullptr) return -1;
  torch::manual_seed(1);  // LibTorch's own seed differs between processes
  try {
    cases().at(name)();
    return 0;
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << std::endl;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
  }
  return 1;
}

ProcessRanks::ProcessRanks(const std::string& case_name, ProcessRanksOptions options)
    : options_(std::move(options)), deadline_(std::chrono::steady_clock::now() + options_.limit) {
  TORCH_CHECK(cases().contains(case_name), "no case named ", case_name);
  for (int rank = 0; rank < options_.world_size; ++rank) start(rank, case_name);
}

void ProcessRanks::start(int rank, const std::string& case_name) {
  auto variables = variables_of({.rank = rank,
                                 .world_size = options_.world_size,
                                 .local_rank = rank,
                                 .local_world_size = options_.world_size,
                                 .port = port_.number()});
  variables[kCaseVariable] = case_name;
  variables["FSDP_HOST"] = c10::str("host ", test_hosts(options_.world_size)[static_cast<size_t>(rank)]);
  if (std::getenv("OMP_NUM_THREADS") == nullptr) variables.emplace("OMP_NUM_THREADS", "1");
  for (const auto& [name, value] : options_.environment)
    variables[name] = value.empty() ? std::nullopt : std::optional(value);
  const std::string path = folder_.path() + "/rank" + std::to_string(rank);
  const Descriptor output(open(path.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600));
  if (options_.forks && has_one_thread()) {
    const auto run = [&]() -> int {
      for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) dup2(output.number(), stream);
      set_variables(variables);
      std::exit(run_process_case());  // also runs the functions registered with atexit
    };
    std::fflush(nullptr);
    ranks_.push_back({fork_child(run), path, {}});
    return;
  }
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const Execution execution(program, {program}, environment_with(variables));
  ranks_.push_back({Child(execution.start({.out = output.number(), .err = output.number()})), path, {}});
}

bool ProcessRanks::poll(Rank& rank) {
  if (!rank.process.is_running()) return true;
  if (!rank.process.has_ended()) return false;
  const ExitStatus& status = *rank.process.status();
  rank.result.exit_code = status.is_signal() ? -1 : status.code();
  rank.result.signal = status.signal();
  read_output(rank);
  return true;
}

void ProcessRanks::read_output(Rank& rank) {
  std::ostringstream text;
  text << std::ifstream(rank.output_path).rdbuf();
  rank.result.output = text.str();
}

const RankResult& ProcessRanks::wait(int number) {
  Rank& rank = ranks_[static_cast<size_t>(number)];
  while (!poll(rank)) {
    if (std::chrono::steady_clock::now() > deadline_ && !rank.result.timed_out) {
      rank.result.timed_out = true;
      rank.process.send(SIGKILL);
    }
    std::this_thread::sleep_for(kStep);
  }
  return rank.result;
}

bool ProcessRanks::wait_for_output(int number, const std::string& text) {
  Rank& rank = ranks_[static_cast<size_t>(number)];
  while (true) {
    const bool ended = poll(rank);
    read_output(rank);
    if (rank.result.output.find(text) != std::string::npos) return true;
    if (ended || std::chrono::steady_clock::now() > deadline_) return false;
    std::this_thread::sleep_for(kStep);
  }
}

void ProcessRanks::kill(int number, int signal) { ranks_[static_cast<size_t>(number)].process.send(signal); }

}  // namespace fsdp::test
