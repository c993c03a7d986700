#include "support/process_ranks.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <torch/utils.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>

extern char** environ;

namespace fsdp::test {
namespace {

constexpr const char* kCaseVariable = "FSDP_TEST_CASE";
constexpr std::chrono::milliseconds kStep{20};

std::map<std::string, std::function<void()>>& cases() {
  static std::map<std::string, std::function<void()>> all;
  return all;
}

std::map<std::string, std::string> own_environment() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return variables;
}

std::string make_folder() {
  std::string pattern = std::filesystem::temp_directory_path() / "fsdp-ranks-XXXXXX";
  TORCH_CHECK(mkdtemp(pattern.data()) != nullptr, "cannot make ", pattern);
  return pattern;
}

}  // namespace

int free_port() {
  const int descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool found = bind(descriptor, generic, length) == 0 && getsockname(descriptor, generic, &length) == 0;
  close(descriptor);
  TORCH_CHECK(found, "no free port");
  return ntohs(address.sin_port);
}

ProcessCase::ProcessCase(const std::string& name, std::function<void()> run) {
  TORCH_CHECK(cases().emplace(name, std::move(run)).second, "two cases named ", name);
}

int run_process_case() {
  const char* name = std::getenv(kCaseVariable);
  if (name == nullptr) return -1;
  torch::manual_seed(1);  // LibTorch's own seed is another one in every process
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
    : options_(std::move(options)),
      deadline_(std::chrono::steady_clock::now() + options_.limit),
      folder_(make_folder()),
      port_(free_port()),
      children_(static_cast<size_t>(options_.world_size)) {
  TORCH_CHECK(cases().contains(case_name), "no case named ", case_name);
  for (int rank = 0; rank < options_.world_size; ++rank) start(rank, case_name);
}

ProcessRanks::~ProcessRanks() {
  for (auto& child : children_) {
    if (child.ended || child.pid <= 0) continue;
    ::kill(child.pid, SIGKILL);
    waitpid(child.pid, nullptr, 0);
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void ProcessRanks::start(int rank, const std::string& case_name) {
  auto variables = own_environment();
  variables[kCaseVariable] = case_name;
  variables["RANK"] = variables["LOCAL_RANK"] = std::to_string(rank);
  variables["WORLD_SIZE"] = std::to_string(options_.world_size);
  variables["MASTER_ADDR"] = "127.0.0.1";
  variables["MASTER_PORT"] = std::to_string(port_);
  variables.insert({"OMP_NUM_THREADS", "1"});
  for (const auto& [name, value] : options_.environment) variables[name] = value;
  std::vector<std::string> entries;
  for (const auto& [name, value] : variables) {
    const auto set = options_.environment.find(name);
    if (set == options_.environment.end() || !value.empty()) entries.push_back(name + '=' + value);
  }
  std::vector<char*> pointers;
  for (auto& entry : entries) pointers.push_back(entry.data());
  pointers.push_back(nullptr);

  Child& child = children_[rank];
  child.output_path = folder_ + "/rank" + std::to_string(rank);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, child.output_path.c_str(), O_CREAT | O_WRONLY | O_APPEND,
                                   0600);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  std::string program = std::filesystem::read_symlink("/proc/self/exe");
  char* arguments[] = {program.data(), nullptr};
  const int error = posix_spawn(&child.pid, program.c_str(), &actions, nullptr, arguments, pointers.data());
  posix_spawn_file_actions_destroy(&actions);
  TORCH_CHECK(error == 0, "cannot start rank ", rank, ": error ", error);
}

bool ProcessRanks::poll(Child& child) {
  if (child.ended) return true;
  int status = 0;
  if (waitpid(child.pid, &status, WNOHANG) != child.pid) return false;
  child.ended = true;
  if (WIFEXITED(status)) child.result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) child.result.signal = WTERMSIG(status);
  read_output(child);
  return true;
}

void ProcessRanks::read_output(Child& child) {
  std::ostringstream text;
  text << std::ifstream(child.output_path).rdbuf();
  child.result.output = text.str();
}

const RankResult& ProcessRanks::wait(int rank) {
  Child& child = children_[rank];
  while (!poll(child)) {
    if (std::chrono::steady_clock::now() > deadline_ && !child.result.timed_out) {
      child.result.timed_out = true;
      ::kill(child.pid, SIGKILL);
    }
    std::this_thread::sleep_for(kStep);
  }
  return child.result;
}

bool ProcessRanks::wait_for_output(int rank, const std::string& text) {
  Child& child = children_[rank];
  while (true) {
    const bool ended = poll(child);
    read_output(child);
    if (child.result.output.find(text) != std::string::npos) return true;
    if (ended || std::chrono::steady_clock::now() > deadline_) return false;
    std::this_thread::sleep_for(kStep);
  }
}

void ProcessRanks::kill(int rank, int signal) {
  if (!children_[rank].ended) ::kill(children_[rank].pid, signal);
}

}  // namespace fsdp::test
