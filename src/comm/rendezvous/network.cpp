#include "comm/rendezvous/network.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <memory>

#include "comm/posix/descriptor.h"

namespace fsdp {

std::string loopback_domain() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::array<char, 128> space{};
  if (readlink("/proc/self/ns/net", space.data(), space.size() - 1) < 0) {
    // Without /proc, host names have to do.
    gethostname(space.data(), space.size() - 1);
  }
  return boot + '/' + space.data();
}

std::string address_towards(const std::string& host, uint16_t port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  for (const addrinfo* candidate = found; candidate != nullptr; candidate = candidate->ai_next) {
    // Connecting a datagram socket sends nothing; it only looks up the route.
    const Descriptor route(socket(candidate->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!route.is_open()) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    std::array<char, NI_MAXHOST> name{};
    const bool known = connect(route.number(), candidate->ai_addr, candidate->ai_addrlen) == 0 &&
                       getsockname(route.number(), reinterpret_cast<sockaddr*>(&own), &length) == 0 &&
                       getnameinfo(reinterpret_cast<sockaddr*>(&own), length, name.data(), name.size(), nullptr, 0,
                                   NI_NUMERICHOST) == 0;
    if (known) return name.data();
  }
  return "";
}

}  // namespace fsdp
