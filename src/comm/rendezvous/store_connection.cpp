#include "comm/rendezvous/store_connection.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/core/check.h"
#include "comm/core/mutex.h"
#include "comm/core/ranks.h"
#include "comm/failure/verdict.h"
#include "comm/posix/of_this_process.h"
#include "comm/rendezvous/job_store.h"
#include "comm/rendezvous/network.h"

#include <map>
#include <stdexcept>

namespace fsdp {
namespace {

// Threads of groups that nobody destroyed may still use them while the process exits.
struct Connections {
  Mutex mutex;
  // By address and by whether this process hosts the store.
  std::map<std::pair<std::string, bool>, c10::intrusive_ptr<c10d::Store>> open FSDP_GUARDED_BY(mutex);
};

[[noreturn]] void explain(const RendezvousParameters& rendezvous, bool hosts, const std::string& address,
                          std::chrono::milliseconds timeout, const std::string& what) {
  const std::string place = Ranks{rendezvous.rank, rendezvous.world_size}.where("init_process_group");
  const std::string detail = first_line(what);
  if (hosts && what.find("EADDRINUSE") != std::string::npos) {
    throw UsageError(str_cat(place, "port ", rendezvous.port, " of ", rendezvous.host,
                             " is taken by another program, or by another run. Choose another "
                             "MASTER_PORT."));
  }
  const bool rank_0_hosts = !rendezvous.agent_hosts_store;
  const std::string text =
      str_cat(place, "no connection to the rendezvous store at ", address, " within ", in_seconds(timeout), ". Is ",
              rank_0_hosts ? "rank 0" : "the launcher", " running, and is that its address? (", detail, ")");
  if (rank_0_hosts && !hosts) throw PeerLost(0, text);
  throw Error(text);
}

// Only at the address that the ranks are given: LibTorch alone listens at every one. An address that is not this
// host's, but leads here, is LibTorch's matter, and so is whatever else is wrong with it.
void choose_listener(const RendezvousParameters& rendezvous, c10d::TCPStoreOptions& options) {
  StoreListener listener = listen_for_store(rendezvous.host, rendezvous.port);
  if (listener.result == StoreListener::Result::kOccupied) throw std::runtime_error("EADDRINUSE");
  if (listener.result == StoreListener::Result::kListens) options.masterListenFd = listener.socket.release();
}

// LibTorch waits for ever for the answer of a program that accepts connections and is no store, and for longer than the
// timeout where nobody listens; a thread of its own is left waiting then.
c10::intrusive_ptr<c10d::Store> open_store(const std::string& host, const c10d::TCPStoreOptions& options) {
  auto store = run_in_time(options.timeout, [=] { return c10::make_intrusive<c10d::TCPStore>(host, options); });
  if (!store) throw std::runtime_error("nobody answers there, or not as a store does");
  return *std::move(store);
}

}  // namespace

c10::intrusive_ptr<c10d::Store> connect_store(const RendezvousParameters& rendezvous,
                                              std::chrono::milliseconds timeout) {
  const bool hosts = rendezvous.rank == 0 && !rendezvous.agent_hosts_store;
  const std::string address = str_cat(rendezvous.host, ':', rendezvous.port);
  auto& own = of_this_process<Connections>();
  {
    const MutexLock lock(own.mutex);
    if (const auto found = own.open.find({address, hosts}); found != own.open.end()) return found->second;
  }
  c10d::TCPStoreOptions options;
  options.port = rendezvous.port;
  options.isServer = hosts;
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    if (hosts) choose_listener(rendezvous, options);
    auto store = open_store(rendezvous.host, options);
    const MutexLock lock(own.mutex);
    return own.open[{address, hosts}] = store;
  } catch (const std::exception& error) {
    explain(rendezvous, hosts, address, timeout, error.what());
  }
}

void close_stores() {
  auto& own = of_this_process<Connections>();
  const MutexLock lock(own.mutex);
  own.open.clear();
}

}  // namespace fsdp
