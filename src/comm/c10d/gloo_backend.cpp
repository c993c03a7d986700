// The only file that sees Gloo's headers. The system's headers may be older than the Gloo inside LibTorch: devices are
// passed on unopened, nothing of Gloo is called, derived from or linked.
#define USE_C10D_GLOO
#include "comm/c10d/gloo_backend.h"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cstdlib>
#include <sstream>

namespace fsdp {

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int world_size, std::chrono::milliseconds timeout,
                                                    const std::string& address) {
  using Gloo = c10d::ProcessGroupGloo;
  auto options = Gloo::Options::create(timeout);
  // Messages are sent and received by the device's thread; the pool runs whole collectives, which are not used.
  options->threads = 1;
  if (const char* interfaces = std::getenv("GLOO_SOCKET_IFNAME"); interfaces && *interfaces) {
    std::istringstream names(interfaces);
    for (std::string name; std::getline(names, name, ',');) {
      options->devices.push_back(Gloo::createDeviceForInterface(name));
    }
  } else {
    options->devices.push_back(address.empty() ? Gloo::createDefaultDevice() : Gloo::createDeviceForHostname(address));
  }
  return c10::make_intrusive<Gloo>(store, rank, world_size, options);
}

}  // namespace fsdp
