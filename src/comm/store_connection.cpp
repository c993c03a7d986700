#include "comm/store_connection.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/check.h"
#include "comm/verdict.h"

#include <map>
#include <mutex>

namespace fsdp {
namespace {

struct Connections {
  std::mutex mutex;
  // By address and by whether this process hosts the store.
  std::map<std::pair<std::string, bool>, c10::intrusive_ptr<c10d::Store>> open;
};

// Never destroyed: threads of groups that nobody destroyed may still use it while the process exits.
Connections& connections() {
  static auto* instance = new Connections;
  return *instance;
}

[[noreturn]] void explain(const Rendezvous& rendezvous, bool hosts, const std::string& address,
                          std::chrono::milliseconds timeout, const std::string& what) {
  const std::string place = where(rendezvous.rank, rendezvous.world_size, "init_process_group");
  const std::string detail = what.substr(0, what.find('\n'));
  if (hosts && what.find("EADDRINUSE") != std::string::npos) {
    throw UsageError(c10::str(place, "port ", rendezvous.port, " of ", rendezvous.host,
                              " is taken by another program, or by another run. Choose another "
                              "MASTER_PORT. (",
                              detail, ")"));
  }
  throw Error(c10::str(place, "no connection to the rendezvous store at ", address, " within ", in_seconds(timeout),
                       ". Is ", rendezvous.agent_hosts_store ? "the launcher" : "rank 0",
                       " running, and is that its address? (", detail, ")"));
}

}  // namespace

c10::intrusive_ptr<c10d::Store> connect_store(const Rendezvous& rendezvous, std::chrono::milliseconds timeout) {
  const bool hosts = rendezvous.rank == 0 && !rendezvous.agent_hosts_store;
  const std::string address = c10::str(rendezvous.host, ':', rendezvous.port);
  auto& [mutex, open] = connections();
  {
    std::lock_guard lock(mutex);
    if (const auto found = open.find({address, hosts}); found != open.end()) return found->second;
  }
  c10d::TCPStoreOptions options;
  options.port = rendezvous.port;
  options.isServer = hosts;
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(rendezvous.host, options);
    std::lock_guard lock(mutex);
    return open[{address, hosts}] = store;
  } catch (const std::exception& error) {
    explain(rendezvous, hosts, address, timeout, error.what());
  }
}

void close_stores() {
  auto& [mutex, open] = connections();
  std::lock_guard lock(mutex);
  open.clear();
}

}  // namespace fsdp
