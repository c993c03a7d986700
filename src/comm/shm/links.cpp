#include "comm/shm/links.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <deque>
#include <fstream>
#include <string_view>

#include "comm/core/check.h"
#include "comm/core/message.h"
#include "comm/shm/segment.h"

namespace fsdp::shm {
namespace {

constexpr std::string_view kOperation = "init_process_group";

std::string problem(const std::string& what) {
  const int error = errno;
  return str_cat(what, " failed: ", std::strerror(error),
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

// What a rank says first.
Notice hello_of(int rank, std::string_view secret) {
  Notice hello{.number = static_cast<uint64_t>(rank)};
  secret.copy(hello.error.data(), hello.error.size() - 1);
  return hello;
}

ucred process_behind(const Descriptor& socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket.number(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) throw Obstacle(problem("SO_PEERCRED"));
  return peer;
}

}  // namespace

std::string new_contact() { return str_cat("fsdp-", random_token(), '/', random_token()); }

Listener::Listener(const std::string& contact)
    : socket_(unix_socket()), contact_(contact), secret_(contact.substr(contact.find('/') + 1)) {
  const auto [address, length] = address_of(contact.substr(0, contact.find('/')));
  if (bind(socket_.number(), reinterpret_cast<const sockaddr*>(&address), length) != 0)
    throw Obstacle(problem("binding an abstract Unix socket"));
  if (listen(socket_.number(), SOMAXCONN) != 0) throw Obstacle(problem("listening on a Unix socket"));
}

Links::Links(const Listener& listener, const std::vector<std::string>& contacts, Ranks ranks,
             std::chrono::milliseconds timeout)
    : ranks_(std::move(ranks)), sockets_(contacts.size()), processes_(contacts.size()) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (int peer = 0; peer < ranks_.rank; ++peer) connect_to(peer, contacts[peer]);
  accept_higher_ranks(listener, deadline);
}

void Links::connect_to(int peer, const std::string& contact) {
  const std::string prefix = ranks_.where(kOperation);
  const int name = ranks_.name_of(peer);
  auto socket = unix_socket();
  const size_t end = contact.find('/');
  const auto [address, length] = address_of(contact.substr(0, end));
  const bool connected = connect(socket.number(), reinterpret_cast<const sockaddr*>(&address), length) == 0;
  if (!connected && errno != ECONNREFUSED) throw Obstacle(problem("connecting to a Unix socket"));
  if (!connected)
    throw PeerLost(name, str_cat(prefix, "nobody listens at rank ", name, "'s socket (", std::strerror(errno),
                                 "): it ended. Look at its output, then start all ranks again."));
  const ucred owner = process_behind(socket);
  require(owner.uid == geteuid(), prefix, "a process of user ", owner.uid, " listens at rank ", name,
          "'s socket, expected one of user ", geteuid(), ". Start all ranks again.");
  keep(peer, std::move(socket));
  send(peer, hello_of(ranks_.rank, contact.substr(end + 1)));
}

// A rank that dies before it has said who it is counts as one that did not come.
void Links::accept_higher_ranks(const Listener& listener, Deadline deadline) {
  constexpr size_t kMostStrangers = 64;
  constexpr std::chrono::milliseconds kLookUp{100};
  std::deque<Descriptor> strangers;  // They have not said yet who they are; nobody waits for any one of them.
  while (missing() >= 0) {
    require_connected();
    std::vector<pollfd> files{{listener.descriptor(), POLLIN, 0}};
    for (const auto& stranger : strangers) files.push_back({stranger.number(), POLLIN, 0});
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      const int name = ranks_.name_of(missing());
      throw PeerLost(name, str_cat(ranks_.where(kOperation), "rank ", name,
                                   " did not connect within the timeout. Look at its output, then start all ranks "
                                   "again."));
    }
    if (poll(files.data(), files.size(), static_cast<int>(std::min(left, kLookUp).count())) <= 0) continue;
    for (size_t i = files.size() - 1; i > 0; --i) {
      if (files[i].revents == 0) continue;
      admit(std::move(strangers[i - 1]), listener);
      strangers.erase(strangers.begin() + static_cast<std::ptrdiff_t>(i - 1));
    }
    if (files[0].revents == 0) continue;
    Descriptor socket(accept4(listener.descriptor(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.is_open() && errno != ECONNABORTED) throw Obstacle(problem("accepting a Unix connection"));
    if (!socket.is_open() || process_behind(socket).uid != geteuid()) continue;
    strangers.push_back(std::move(socket));
    if (strangers.size() > kMostStrangers) strangers.pop_front();
  }
}

// Those that are missing may have given up because of a rank that this one met before.
void Links::require_connected() const {
  for (int peer = 0; peer < static_cast<int>(sockets_.size()); ++peer) {
    if (!sockets_[peer].is_open() || !is_closed(peer)) continue;
    const int name = ranks_.name_of(peer);
    throw PeerLost(name, str_cat(ranks_.where(kOperation), "rank ", name,
                                 " connected and ended. Look at its output, then start all ranks again."));
  }
}

// Keeps the connection of a rank that is still missing; closes any other one.
void Links::admit(Descriptor stranger, const Listener& listener) {
  Notice hello;
  if (recv(stranger.number(), &hello, sizeof(hello), MSG_DONTWAIT) != sizeof(hello)) return;
  hello.error.back() = '\0';
  if (!are_equal_secrets(hello.error.data(), listener.secret())) return;
  const bool is_missing = hello.number > static_cast<uint64_t>(ranks_.rank) && hello.number < sockets_.size() &&
                          !sockets_[hello.number].is_open();
  if (is_missing) keep(static_cast<int>(hello.number), std::move(stranger));
}

void Links::keep(int peer, Descriptor socket) {
  processes_[peer] = Descriptor(static_cast<int>(syscall(SYS_pidfd_open, process_behind(socket).pid, 0)));
  sockets_[peer] = std::move(socket);
}

int Links::missing() const {
  for (int peer = ranks_.rank + 1; peer < static_cast<int>(sockets_.size()); ++peer)
    if (!sockets_[peer].is_open()) return peer;
  return -1;
}

void Links::send(int peer, const Notice& notice, const Descriptor& attached) {
  iovec content{const_cast<Notice*>(&notice), sizeof(notice)};
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

std::optional<std::pair<Notice, Descriptor>> Links::receive(int peer, std::chrono::milliseconds limit,
                                                            uint64_t channel) {
  auto& unread = unread_[peer];
  while (true) {
    const auto found =
        std::find_if(unread.begin(), unread.end(), [&](const auto& entry) { return entry.first.channel == channel; });
    if (found != unread.end()) {
      auto arrived = std::move(*found);
      unread.erase(found);
      return arrived;
    }
    auto arrived = read(peer, limit);
    if (!arrived) return std::nullopt;
    unread.push_back(std::move(*arrived));
  }
}

void Links::await(int peer, std::chrono::milliseconds limit) const {
  pollfd waiting{sockets_[peer].number(), POLLIN, 0};
  poll(&waiting, 1, static_cast<int>(limit.count()));
}

void Links::drain(int peer) {
  while (read(peer, std::chrono::milliseconds(0))) {
  }
  unread_.erase(peer);
}

std::optional<std::pair<Notice, Descriptor>> Links::read(int peer, std::chrono::milliseconds limit) {
  pollfd waiting{sockets_[peer].number(), POLLIN, 0};
  if (poll(&waiting, 1, static_cast<int>(limit.count())) <= 0) return std::nullopt;
  Notice notice;
  iovec content{&notice, sizeof(notice)};
  msghdr header{};
  header.msg_iov = &content;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> space{};
  header.msg_control = space.data();
  header.msg_controllen = space.size();
  if (recvmsg(sockets_[peer].number(), &header, MSG_CMSG_CLOEXEC) != sizeof(notice)) return std::nullopt;
  Descriptor attached;
  for (cmsghdr* control = CMSG_FIRSTHDR(&header); control != nullptr; control = CMSG_NXTHDR(&header, control)) {
    int number = -1;
    if (control->cmsg_type == SCM_RIGHTS) std::memcpy(&number, CMSG_DATA(control), sizeof(int));
    attached = Descriptor(number);
  }
  return std::pair(notice, std::move(attached));
}

bool Links::is_closed(int peer) const {
  std::array<pollfd, 2> state{{{sockets_[peer].number(), POLLRDHUP, 0}, {processes_[peer].number(), POLLIN, 0}}};
  return poll(state.data(), state.size(), 0) > 0 &&
         ((state[0].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0 || (state[1].revents & POLLIN) != 0);
}

void Links::leave() {
  for (const auto& socket : sockets_) shutdown(socket.number(), SHUT_RDWR);
}

bool Links::is_running(int peer) const {
  // "pid (name) state ...", where the name may hold anything.
  std::ifstream file(str_cat("/proc/", process_behind(sockets_[peer]).pid, "/stat"));
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(") ");
  return name_end != std::string::npos && std::string_view("RSD").find(line[name_end + 2]) != std::string_view::npos;
}

}  // namespace fsdp::shm
