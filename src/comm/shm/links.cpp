#include "comm/shm/links.h"

#include <c10/util/StringUtil.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <tuple>

#include "comm/check.h"
#include "comm/shm/segment.h"

namespace fsdp::shm {
namespace {

constexpr std::string_view kOperation = "init_process_group";

std::string problem(const std::string& what) {
  const int error = errno;
  return c10::str(what, " failed: ", std::strerror(error),
                  error == EMFILE ? ". Raise the limit on open files (ulimit -n)"
                                  : ". A sandbox may forbid it; use the backend \"gloo\"");
}

Descriptor unix_socket() {
  Descriptor result(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!result.is_open()) throw Obstacle(problem("socket(AF_UNIX)"));
  return result;
}

// An abstract name begins with a zero byte and ends with the length.
std::pair<sockaddr_un, socklen_t> address_of(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), std::min(name.size(), sizeof(address.sun_path) - 1));
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

std::string random_name() {
  std::random_device random;
  std::ostringstream name;
  name << "fsdp" << std::hex;
  for (int i = 0; i < 4; ++i) name << '-' << random();
  return name.str();
}

ucred process_behind(const Descriptor& socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket.number(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) throw Obstacle(problem("SO_PEERCRED"));
  return peer;
}

void require_same_user(const Descriptor& socket, const std::string& place) {
  const ucred peer = process_behind(socket);
  require(peer.uid == geteuid(), place, "ranks of one user can share memory, found a process of user ", peer.uid,
          " beside one of user ", geteuid(), ". Start every rank as the same user, or use the backend \"gloo\".");
}

}  // namespace

Listener::Listener() : socket_(unix_socket()), name_(random_name()) {
  auto [address, length] = address_of(name_);
  while (bind(socket_.number(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno != EADDRINUSE) throw Obstacle(problem("binding an abstract Unix socket"));
    name_ = random_name();
    std::tie(address, length) = address_of(name_);
  }
  if (listen(socket_.number(), SOMAXCONN) != 0) throw Obstacle(problem("listening on a Unix socket"));
}

Links::Links(const Listener& listener, const std::vector<std::string>& names, int rank,
             std::chrono::milliseconds timeout)
    : rank_(rank), sockets_(names.size()) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (int peer = 0; peer < rank; ++peer) connect_to(peer, names[peer]);
  for (size_t waiting = names.size() - static_cast<size_t>(rank) - 1; waiting > 0; --waiting)
    accept_from(listener, deadline);
}

std::string Links::place() const { return where(rank_, static_cast<int>(sockets_.size()), kOperation); }

void Links::connect_to(int peer, const std::string& name) {
  auto socket = unix_socket();
  const auto [address, length] = address_of(name);
  const bool connected = connect(socket.number(), reinterpret_cast<const sockaddr*>(&address), length) == 0;
  if (!connected && errno != ECONNREFUSED) throw Obstacle(problem("connecting to a Unix socket"));
  if (!connected)
    throw PeerLost(peer, c10::str(place(), "nobody listens at rank ", peer, "'s socket (", std::strerror(errno),
                                  "): it ended. Look at its output, then start all ranks again."));
  require_same_user(socket, place());
  sockets_[peer] = std::move(socket);
  send(peer, {.number = static_cast<uint64_t>(rank_)});
}

// A rank that dies before it has said who it is counts as one that did not come.
void Links::accept_from(const Listener& listener, Deadline deadline) {
  while (true) {
    wait_for_arrival(listener.descriptor(), deadline);
    Descriptor socket(accept4(listener.descriptor(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.is_open()) throw Obstacle(problem("accepting a Unix connection"));
    require_same_user(socket, place());
    wait_for_arrival(socket.number(), deadline);
    Message hello;
    if (recv(socket.number(), &hello, sizeof(hello), 0) != sizeof(hello)) continue;
    sockets_.at(hello.number) = std::move(socket);
    return;
  }
}

void Links::wait_for_arrival(int descriptor, Deadline deadline) const {
  pollfd waiting{descriptor, POLLIN, 0};
  while (true) {
    const auto left = deadline - std::chrono::steady_clock::now();
    const auto left_ms = std::chrono::duration_cast<std::chrono::milliseconds>(left).count();
    const int arrived = left_ms > 0 ? poll(&waiting, 1, static_cast<int>(left_ms)) : 0;
    if (arrived > 0) return;
    if (arrived < 0 && errno == EINTR) continue;
    throw PeerLost(missing(), c10::str(place(), "rank ", missing(),
                                       " did not connect within the timeout. Look at its output, then start all ranks "
                                       "again."));
  }
}

int Links::missing() const {
  for (int peer = rank_ + 1; peer < static_cast<int>(sockets_.size()); ++peer)
    if (!sockets_[peer].is_open()) return peer;
  return -1;
}

void Links::send(int peer, const Message& message, const Descriptor& attached) {
  iovec content{const_cast<Message*>(&message), sizeof(message)};
  msghdr header{};
  header.msg_iov = &content;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> space{};
  if (attached.is_open()) {
    header.msg_control = space.data();
    header.msg_controllen = space.size();
    cmsghdr* control = CMSG_FIRSTHDR(&header);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof(int));
    const int number = attached.number();
    std::memcpy(CMSG_DATA(control), &number, sizeof(int));
  }
  // A peer that is gone is noticed by whoever waits for it.
  sendmsg(sockets_[peer].number(), &header, MSG_NOSIGNAL);
}

std::optional<std::pair<Message, Descriptor>> Links::receive(int peer, std::chrono::milliseconds limit) {
  pollfd waiting{sockets_[peer].number(), POLLIN, 0};
  if (poll(&waiting, 1, static_cast<int>(limit.count())) <= 0) return std::nullopt;
  Message message;
  iovec content{&message, sizeof(message)};
  msghdr header{};
  header.msg_iov = &content;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> space{};
  header.msg_control = space.data();
  header.msg_controllen = space.size();
  if (recvmsg(sockets_[peer].number(), &header, MSG_CMSG_CLOEXEC) != sizeof(message)) return std::nullopt;
  Descriptor attached;
  for (cmsghdr* control = CMSG_FIRSTHDR(&header); control != nullptr; control = CMSG_NXTHDR(&header, control)) {
    int number = -1;
    if (control->cmsg_type == SCM_RIGHTS) std::memcpy(&number, CMSG_DATA(control), sizeof(int));
    attached = Descriptor(number);
  }
  return std::pair(message, std::move(attached));
}

bool Links::is_closed(int peer) const {
  pollfd state{sockets_[peer].number(), POLLRDHUP, 0};
  return poll(&state, 1, 0) > 0 && (state.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

bool Links::is_running(int peer) const {
  // "pid (name) state ...", where the name may hold anything.
  std::ifstream file(c10::str("/proc/", process_behind(sockets_[peer]).pid, "/stat"));
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(") ");
  return name_end != std::string::npos && std::string_view("RSD").find(line[name_end + 2]) != std::string_view::npos;
}

}  // namespace fsdp::shm
