#include "comm/rendezvous/store_listener.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace fsdp {
namespace {

bool is_address(const std::string& host) {
  in6_addr number;
  return inet_pton(AF_INET, host.c_str(), &number) == 1 || inet_pton(AF_INET6, host.c_str(), &number) == 1;
}

bool is_localhost(const std::string& host) { return host == "localhost" || host.starts_with("localhost."); }

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

/// Not open, with errno set, if that fails. Listening at once shows whether the port is taken.
Descriptor listen_at(const sockaddr_storage& address) {
  Descriptor file(socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
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
Descriptor listen_everywhere(uint16_t port) {
  sockaddr_storage address{};
  address.ss_family = AF_INET6;
  set_port(address, port);
  Descriptor file = listen_at(address);
  if (file.is_open() || errno == EADDRINUSE || errno == EACCES) return file;
  address = {};
  address.ss_family = AF_INET;
  set_port(address, port);
  return listen_at(address);
}

}  // namespace

StoreListener listen_for_store(const std::string& host, uint16_t port) {
  using Result = StoreListener::Result;
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0)
    return {.result = Result::kUnknownHost, .socket = {}, .problem = gai_strerror(error)};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  sockaddr_storage address{};
  memcpy(&address, found->ai_addr, found->ai_addrlen);
  set_port(address, 0);
  if (!listen_at(address).is_open()) return {.result = Result::kNotHere, .socket = {}, .problem = ""};
  set_port(address, port);
  const bool exactly = is_address(host) || is_localhost(host);
  Descriptor file = exactly ? listen_at(address) : listen_everywhere(port);
  if (file.is_open()) {
    const uint16_t actual = port_of(file.number());
    return {.result = Result::kListens, .socket = std::move(file), .port = actual, .problem = ""};
  }
  if (errno == EADDRINUSE) return {.result = Result::kOccupied, .socket = {}, .problem = ""};
  return {.result = Result::kRefused, .socket = {}, .problem = strerror(errno)};
}

int try_to_connect(const std::string& host, uint16_t port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return EHOSTUNREACH;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  int error = EHOSTUNREACH;
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    const Descriptor file(socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (file.is_open() && connect(file.number(), address->ai_addr, address->ai_addrlen) == 0) return 0;
    error = errno;
  }
  return error;
}

}  // namespace fsdp
