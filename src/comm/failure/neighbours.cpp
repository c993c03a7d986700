#include "comm/failure/neighbours.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <fstream>

namespace fsdp {
namespace {

// Equal for two processes that know each other under the same numbers.
std::string process_domain() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::array<char, 128> space{};
  if (boot.empty() || readlink("/proc/self/ns/pid", space.data(), space.size() - 1) < 0) return "";
  return boot + '/' + space.data() + '/';
}

}  // namespace

std::string own_process_name() {
  const std::string domain = process_domain();
  return domain.empty() ? "" : domain + std::to_string(getpid());
}

Neighbours::Neighbours(const std::vector<std::string>& names) {
  const std::string domain = process_domain(), own = own_process_name();
  if (domain.empty()) return;
  for (size_t rank = 0; rank < names.size(); ++rank) {
    if (!names[rank].starts_with(domain) || names[rank] == own) continue;
    const auto process = static_cast<pid_t>(std::stol(names[rank].substr(domain.size())));
    Descriptor descriptor(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
    if (descriptor.is_open()) watched_.push_back({static_cast<int>(rank), std::move(descriptor)});
  }
}

std::vector<int> Neighbours::ended() const {
  std::vector<int> ranks;
  for (const auto& [rank, process] : watched_) {
    pollfd state{process.number(), POLLIN, 0};
    if (poll(&state, 1, 0) > 0) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace fsdp
