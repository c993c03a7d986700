// This is the only file that includes Gloo's headers. The system's headers may be older than the Gloo inside LibTorch,
// so this file passes devices on without looking into them, and it neither calls, derives from nor links anything of
// Gloo.
#define USE_C10D_GLOO
#include "comm/c10d/backends.h"

#include <c10/util/ScopeExit.h>
#include <pthread.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "comm/core/check.h"

#include <cstdlib>
#include <stdexcept>

namespace fsdp {

namespace {

using Gloo = c10d::ProcessGroupGloo;

// Note [Connections to all ranks]
// A backend connects all pairs of ranks when it is made. Gloo's devices can also connect a pair when it is first used
// (`lazyInit`). Then, on the rank with the lower address, the first send or recv with a peer blocks until the peer
// sends or receives, too. Gloo bounds this wait by five times the timeout, names no rank in its error, and cannot abort
// it, and the other queues on these connections (see Transport) would wait meanwhile. So a rank that is lost before
// first contact would be found too late.
c10::intrusive_ptr<Gloo::Options> options_for(const std::string& interfaces, const std::string& address,
                                              std::chrono::milliseconds timeout) {
  // Gloo's thread, which has the scheduling policy of the thread that starts it, must not preempt the threads that wake
  // it. Otherwise it could preempt a thread that holds a connection's lock and then poll for that lock for up to a tick
  // of the scheduler.
  int policy = 0;
  sched_param parameters{};
  pthread_getschedparam(pthread_self(), &policy, &parameters);
  const auto set_policy = [&](int wanted) {
    if (policy == SCHED_OTHER) pthread_setschedparam(pthread_self(), wanted, &parameters);
  };
  set_policy(SCHED_BATCH);
  const auto restore = c10::make_scope_exit([&] { set_policy(policy); });
  auto options = Gloo::Options::create(timeout);
  // The device's thread sends and receives messages. The pool would run Gloo's own collectives, which fsdp does not
  // use.
  options->threads = 0;
  TextReader names(interfaces);
  for (std::string name; std::getline(names, name, ',');)
    options->devices.push_back(Gloo::createDeviceForInterface(name));
  if (options->devices.empty())
    options->devices.push_back(address.empty() ? Gloo::createDefaultDevice() : Gloo::createDeviceForHostname(address));
  return options;
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int world_size, std::chrono::milliseconds timeout,
                                                    const std::string& address) {
  const char* named = std::getenv("GLOO_SOCKET_IFNAME");
  const std::string interfaces = named == nullptr ? "" : named;
  try {
    return c10::make_intrusive<Gloo>(store, rank, world_size, options_for(interfaces, address, timeout));
  } catch (const std::exception& error) {
    throw std::runtime_error(str_cat("Gloo could not connect the ranks over ",
                                     !interfaces.empty() ? "GLOO_SOCKET_IFNAME=" + interfaces
                                     : address.empty()   ? "this host's name"
                                                         : address,
                                     " (", first_line(error.what()),
                                     "); the network interface must exist and reach every rank's host on any port. Set "
                                     "GLOO_SOCKET_IFNAME to choose a different interface"));
  }
}

}  // namespace fsdp
