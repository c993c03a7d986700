#include "host_facts.h"

#include <ATen/Version.h>
#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <torch/cuda.h>
#include <torch/version.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "comm/rendezvous/network.h"
#include "interfaces.h"
#include "launch/variables.h"

namespace fsdprun {
namespace {

namespace fs = std::filesystem;
constexpr const char* kNone = "none";

/// Returns the first line of `file`, or an empty string if the file cannot be read.
std::string first_line(const fs::path& file) {
  std::string line;
  std::getline(std::ifstream(file) >> std::ws, line);
  return line;
}

std::string or_none(std::string text) { return text.empty() ? kNone : std::move(text); }

/// Returns the version of a library that this process has loaded, e.g. 13000, or 0 if it is not loaded. `function` is
/// the name of the library's function that returns the version.
int version_of(const char* function) {
  int version = 0;
  const auto ask = reinterpret_cast<int (*)(int*)>(dlsym(RTLD_DEFAULT, function));
  return ask != nullptr && ask(&version) == 0 ? version : 0;
}

std::string cuda_runtime() {
  const int version = version_of("cudaRuntimeGetVersion");
  if (version == 0) return kNone;
  return std::to_string(version / 1000) + '.' + std::to_string(version % 1000 / 10);
}

std::string nccl() {
  const int version = version_of("ncclGetVersion");
  if (version == 0) return kNone;
  return std::to_string(version / 10000) + '.' + std::to_string(version % 10000 / 100) + '.' +
         std::to_string(version % 100);
}

/// Returns the version of CUDA's toolkit on this host, which may differ from the CUDA in LibTorch.
std::string cuda_toolkit() {
  const char* home = std::getenv("CUDA_HOME");
  const fs::path folder = home != nullptr ? home : "/usr/local/cuda";
  const auto versions = nlohmann::json::parse(std::ifstream(folder / "version.json"), nullptr, false);
  if (versions.is_discarded() || !versions.contains("cuda")) return kNone;
  return versions["cuda"].value("version", kNone) + " in " + folder.string();
}

std::string gpus() {
  std::string names;
  std::error_code ignored;
  for (const auto& device : fs::directory_iterator("/proc/driver/nvidia/gpus", ignored)) {
    std::string name = first_line(device.path() / "information");
    name = name.substr(std::min(name.size(), name.find_first_not_of(" \t", name.find(':') + 1)));
    names += (names.empty() ? "" : ", ") + name;
  }
  return std::to_string(torch::cuda::device_count()) + " seen by LibTorch" + (names.empty() ? "" : " of " + names);
}

std::string bytes_text(double bytes) {
  constexpr double kGiB = 1 << 30, kMiB = 1 << 20;
  if (bytes >= kGiB) return std::to_string(static_cast<int64_t>(bytes / kGiB)) + " GiB";
  return std::to_string(static_cast<int64_t>(bytes / kMiB)) + " MiB";
}

std::string limit(int resource, bool in_bytes) {
  rlimit found{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &found) != 0) return "unknown";
  if (found.rlim_cur == RLIM_INFINITY) return "unlimited";
  return in_bytes ? std::to_string(found.rlim_cur / 1024) + " KiB" : std::to_string(found.rlim_cur);
}

std::string shared_memory_folder() {
  struct statvfs found{};
  if (statvfs("/dev/shm", &found) != 0) return kNone;
  const auto block = static_cast<double>(found.f_frsize);
  return bytes_text(block * static_cast<double>(found.f_bavail)) + " free of " +
         bytes_text(block * static_cast<double>(found.f_blocks));
}

/// Returns the memory limit at the root of the control groups that this process sees. In a container this root is the
/// container's own group, or a group above it.
std::string memory_limit_of_group() {
  for (const char* file : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    const std::string text = first_line(file);
    if (text.empty()) continue;
    const double bytes = text == "max" ? 1e18 : std::strtod(text.c_str(), nullptr);
    return bytes > 1e15 ? "unlimited" : bytes_text(bytes);
  }
  return "unknown";
}

/// Returns the environment variables that are set and that control how ranks communicate and what they log.
std::string communication_variables() {
  std::set<std::string> found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    for (const std::string_view begin : {"NCCL_", "GLOO_", "TORCH_DISTRIBUTED_", "TORCH_NCCL_"})
      if (text.starts_with(begin)) found.emplace(text);
  }
  std::string list;
  for (const std::string& variable : found) list += (list.empty() ? "" : ", ") + variable;
  return or_none(list);
}

}  // namespace

HostFacts find_host_facts(const std::string& host, uint16_t port) {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  const Interfaces network = find_interfaces(fsdp::address_towards(host, port));
  const double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  return {.host = name.data(),
          .facts = {{"LibTorch", TORCH_VERSION},
                    {"CUDA runtime", cuda_runtime()},
                    {"CUDA toolkit", cuda_toolkit(), FactKind::kShown},
                    {"NCCL", nccl()},
                    {"driver", or_none(first_line("/sys/module/nvidia/version"))},
                    {"GPUs", gpus()},
                    {"processors", std::to_string(fsdp::count_processors()), FactKind::kShown},
                    {"memory", bytes_text(memory), FactKind::kShown},
                    {"memory of the control group", memory_limit_of_group(), FactKind::kShown},
                    {"/dev/shm", shared_memory_folder(), FactKind::kShown},
                    {"ulimit -l (memlock)", limit(RLIMIT_MEMLOCK, true)},
                    {"ulimit -n (open files)", limit(RLIMIT_NOFILE, false)},
                    {"ulimit -v (address space)", limit(RLIMIT_AS, true)},
                    {"interfaces", or_none(network.list), FactKind::kShown},
                    {"MTU towards node 0", network.mtu},
                    {"offloads towards node 0", network.offloads},
                    {"variables", communication_variables(), FactKind::kShown}}};
}

}  // namespace fsdprun
