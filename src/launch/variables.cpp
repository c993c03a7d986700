#include "launch/variables.h"

#include <fsdp/error.h>
#include <netinet/in.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace fsdp {

Variables variables_of(const RankPlace& place) {
  return {
      {"RANK", std::to_string(place.rank)},
      {"LOCAL_RANK", std::to_string(place.local_rank)},
      {"WORLD_SIZE", std::to_string(place.world_size)},
      {"LOCAL_WORLD_SIZE", std::to_string(place.local_world_size)},
      {"MASTER_ADDR", place.host},
      {"MASTER_PORT", std::to_string(place.port)},
      {"TORCHELASTIC_USE_AGENT_STORE", std::nullopt},
      {"TORCHELASTIC_RESTART_COUNT", std::nullopt},
      {kCountsSignalsVariable, place.counts_signals ? std::optional("1") : std::nullopt},
  };
}

std::vector<std::string> environment_with(const Variables& variables) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    if (!variables.contains(text.substr(0, text.find('=')))) result.push_back(text);
  }
  for (const auto& [name, value] : variables)
    if (value) result.push_back(name + "=" + *value);
  return result;
}

void set_variables(const Variables& variables) {
  for (const auto& [name, value] : variables) {
    if (value)
      setenv(name.c_str(), value->c_str(), /*overwrite=*/1);
    else
      unsetenv(name.c_str());
  }
}

HeldPort::HeldPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const int on = 1;
  if (!socket_.is_open() || setsockopt(socket_.number(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(socket_.number(), generic, size) != 0 || getsockname(socket_.number(), generic, &size) != 0)
    throw Error(std::string("[fsdp] cannot find a free port on 127.0.0.1 for the ranks to meet at: ") +
                strerror(errno));
  number_ = ntohs(address.sin_port);
}

int count_processors() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace fsdp
