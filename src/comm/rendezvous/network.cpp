#include "comm/rendezvous/network.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>

namespace fsdp {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Stores the result of getaddrinfo in `error`. Returns null if that is not 0.
Addresses addresses_of(const std::string& host, uint16_t port, int type, int* error = nullptr) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = type;
  const int result = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != nullptr) *error = result;
  return {result == 0 ? found : nullptr, freeaddrinfo};
}

// IPv4 and IPv6 addresses hold the port at the same offset.
static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
in_port_t& port_in(sockaddr_storage& address) { return reinterpret_cast<sockaddr_in&>(address).sin_port; }

bool is_number_or_localhost(const std::string& host) {
  in6_addr number;
  return inet_pton(AF_INET, host.c_str(), &number) == 1 || inet_pton(AF_INET6, host.c_str(), &number) == 1 ||
         host == "localhost" || host.starts_with("localhost.");
}

/// Returns a socket that listens at `address` and `port`, or a closed descriptor with errno set. It listens at once
/// because only that shows whether the port is taken.
Descriptor listen_at(sockaddr_storage address, uint16_t port) {
  port_in(address) = htons(port);
  Descriptor file(socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!file.is_open()) return file;
  const int on = 1, off = 0;
  setsockopt(file.number(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.ss_family == AF_INET6) setsockopt(file.number(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  const socklen_t size = address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (bind(file.number(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      listen(file.number(), SOMAXCONN) != 0) {
    const int error = errno;
    file.close();
    errno = error;
  }
  return file;
}

/// Listens at every address of this host: at IPv6 and IPv4 addresses, or at IPv4 alone if the host has no IPv6.
Descriptor listen_everywhere(uint16_t port) {
  sockaddr_storage address{};
  address.ss_family = AF_INET6;
  Descriptor file = listen_at(address, port);
  if (file.is_open() || errno == EADDRINUSE || errno == EACCES) return file;
  address.ss_family = AF_INET;
  return listen_at(address, port);
}

}  // namespace

std::string host_domain() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::error_code unknown;
  std::string network = std::filesystem::read_symlink("/proc/self/ns/net", unknown).string();
  if (unknown) {
    // Without /proc, the host name stands for the network namespace.
    std::array<char, 128> name{};
    gethostname(name.data(), name.size() - 1);
    network = name.data();
  }
  return boot + '/' + network + '/' + std::filesystem::read_symlink("/proc/self/ns/pid", unknown).string();
}

std::string address_towards(const std::string& host, uint16_t port) {
  const auto found = addresses_of(host, port, SOCK_DGRAM);
  for (const addrinfo* candidate = found.get(); candidate != nullptr; candidate = candidate->ai_next) {
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

StoreListener listen_for_store(const std::string& host, uint16_t port) {
  using Result = StoreListener::Result;
  int error = 0;
  const auto found = addresses_of(host, port, SOCK_STREAM, &error);
  if (!found) return {.result = Result::kUnknownHost, .problem = gai_strerror(error)};
  sockaddr_storage address{};
  memcpy(&address, found->ai_addr, found->ai_addrlen);
  if (!listen_at(address, 0).is_open()) return {.result = Result::kNotHere};
  Descriptor file = is_number_or_localhost(host) ? listen_at(address, port) : listen_everywhere(port);
  if (!file.is_open()) {
    if (errno == EADDRINUSE) return {.result = Result::kOccupied};
    return {.result = Result::kRefused, .problem = strerror(errno)};
  }
  socklen_t size = sizeof(address);
  getsockname(file.number(), reinterpret_cast<sockaddr*>(&address), &size);
  return {.result = Result::kListens, .socket = std::move(file), .port = ntohs(port_in(address))};
}

int try_to_connect(const std::string& host, uint16_t port) {
  const auto found = addresses_of(host, port, SOCK_STREAM);
  int error = EHOSTUNREACH;
  for (const addrinfo* address = found.get(); address != nullptr; address = address->ai_next) {
    const Descriptor file(socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (file.is_open() && connect(file.number(), address->ai_addr, address->ai_addrlen) == 0) return 0;
    error = errno;
  }
  return error;
}

}  // namespace fsdp
