#include "listener.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "exit.h"

namespace fsdprun {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    throw Exit(kFailure, "the host '" + host + "' cannot be found: " + gai_strerror(error));
  }
  return AddressList(found, freeaddrinfo);
}

void set_port(sockaddr_storage& address, uint16_t port) {
  if (address.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address).sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in&>(address).sin_port = htons(port);
  }
}

uint16_t port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

bool is_loopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  }
  const auto& number = reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr;
  return (ntohl(number) >> 24) == IN_LOOPBACKNET;
}

/// Not open, with errno set, if that fails. Listening at once shows whether the port is taken.
fsdp::Descriptor listen_at(const sockaddr_storage& address) {
  fsdp::Descriptor file(socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!file.is_open()) return file;
  const int on = 1;
  const int off = 0;
  setsockopt(file.number(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.ss_family == AF_INET6) {
    setsockopt(file.number(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  const socklen_t size = address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (bind(file.number(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      listen(file.number(), SOMAXCONN) != 0) {
    const int error = errno;
    file.close();
    errno = error;
  }
  return file;
}

/// Every address of this host, IPv6 and IPv4, or IPv4 alone where there is no IPv6.
fsdp::Descriptor listen_everywhere(uint16_t port) {
  sockaddr_storage address{};
  address.ss_family = AF_INET6;
  set_port(address, port);
  fsdp::Descriptor file = listen_at(address);
  if (file.is_open() || errno == EADDRINUSE || errno == EACCES) return file;
  address = {};
  address.ss_family = AF_INET;
  set_port(address, port);
  return listen_at(address);
}

}  // namespace

Listener bind_store_port(const std::string& host, uint16_t port) {
  const AddressList addresses = resolve(host);
  sockaddr_storage address{};
  memcpy(&address, addresses->ai_addr, addresses->ai_addrlen);
  set_port(address, 0);
  if (!listen_at(address).is_open()) return {.result = Listener::Result::kNotHere, .socket = {}};
  set_port(address, port);
  fsdp::Descriptor file = is_loopback(address) ? listen_at(address) : listen_everywhere(port);
  if (file.is_open()) {
    const uint16_t actual = port_of(file.number());
    return {.result = Listener::Result::kListens, .socket = std::move(file), .port = actual};
  }
  if (errno == EADDRINUSE) return {.result = Listener::Result::kOccupied, .socket = {}};
  throw Exit(kFailure, "port " + std::to_string(port) + " cannot be used: " + strerror(errno));
}

}  // namespace fsdprun
