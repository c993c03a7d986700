#include "signals.h"

#include <poll.h>
#include <sys/signalfd.h>

#include <string>

#include "comm/posix/signals.h"

namespace fsdprun {

SignalQueue::SignalQueue() {
  sigemptyset(&handled_);
  for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    if (!fsdp::is_ignored(number)) sigaddset(&handled_, number);
  }
  sigprocmask(SIG_BLOCK, &handled_, &previous_);
  ignored_broken_pipes_ = signal(SIGPIPE, SIG_IGN) == SIG_IGN;
  descriptor_ = fsdp::Descriptor(signalfd(-1, &handled_, SFD_CLOEXEC | SFD_NONBLOCK));
}

std::optional<int> SignalQueue::next() {
  signalfd_siginfo signal;
  if (read(descriptor_.number(), &signal, sizeof(signal)) != sizeof(signal)) return std::nullopt;
  return static_cast<int>(signal.ssi_signo);
}

std::optional<int> SignalQueue::wait_for_end(std::chrono::milliseconds timeout) {
  pollfd file{descriptor(), POLLIN, 0};
  poll(&file, 1, static_cast<int>(timeout.count()));
  while (const auto number = next()) {
    if (asks_for_end(*number)) return number;
  }
  return std::nullopt;
}

bool asks_for_end(int number) { return number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT; }

}  // namespace fsdprun
