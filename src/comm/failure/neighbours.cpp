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

Neighbours::Neighbours(const std::vector<std::string>& names, const Ranks& ranks) {
  const std::string domain = process_domain(), own = own_process_name();
  if (domain.empty()) return;
  for (size_t rank = 0; rank < names.size(); ++rank) {
    if (!names[rank].starts_with(domain) || names[rank] == own) continue;
    const auto process = static_cast<pid_t>(std::stol(names[rank].substr(domain.size())));
    Descriptor descriptor(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
    if (descriptor.is_open()) watched_.push_back({ranks.name_of(static_cast<int>(rank)), std::move(descriptor)});
  }
}

std::vector<int> Neighbours::wait(int stop) {
  std::vector<pollfd> files{{stop, POLLIN, 0}};
  for (const auto& watched : watched_) files.push_back({watched.process.number(), POLLIN, 0});
  std::vector<int> ended;
  while (ended.empty() && files[0].revents == 0) {
    poll(files.data(), files.size(), -1);
    for (size_t i = watched_.size(); i > 0; --i) {
      if (files[i].revents == 0) continue;
      ended.push_back(watched_[i - 1].rank);
      watched_.erase(watched_.begin() + static_cast<std::ptrdiff_t>(i - 1));
    }
  }
  return files[0].revents == 0 ? ended : std::vector<int>();
}

}  // namespace fsdp
