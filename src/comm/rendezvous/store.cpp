#include "comm/rendezvous/store.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/core/check.h"
#include "comm/core/mutex.h"
#include "comm/core/ranks.h"
#include "comm/failure/verdict.h"
#include "comm/posix/of_this_process.h"
#include "comm/posix/signals.h"
#include "comm/rendezvous/network.h"

#include <functional>
#include <future>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace fsdp {
namespace {

using std::chrono::milliseconds;
using Bytes = std::vector<uint8_t>;
using Keys = std::vector<std::string>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

// Runs `act` in a thread of its own and returns its result or exception, or an invalid future if that takes longer than
// `limit`. The thread is then left behind, so `act` must own what it uses.
template <class Act>
auto run_in_time(std::chrono::milliseconds limit, Act act) -> std::future<decltype(act())> {
  std::packaged_task<decltype(act())()> task([act = std::move(act)] {
    const PipeSignalBlocked no_pipe_signal;
    return act();
  });
  auto result = task.get_future();
  std::thread thread(std::move(task));
  if (result.wait_for(limit) == std::future_status::timeout) {
    thread.detach();
    return {};
  }
  thread.join();
  return result;
}

// Time that a call may take beyond the timeout with which it waits for keys.
constexpr milliseconds kGrace{1000};

// State that all clones of a store share.
struct Shared {
  std::shared_ptr<std::atomic<int64_t>> calls;
  std::atomic<bool> is_silent = false;
};

class JobStore : public c10d::Store {
  // Returns what `act`, a function or a member of Store, returns for the store. Throws if the store does not answer
  // within `limit` or has not answered an earlier call. `act` must own what it uses.
  template <class Act, class... Arguments>
  auto ask(milliseconds limit, Act act, const Arguments&... arguments) const {
    ++*shared_->calls;
    if (!shared_->is_silent) {
      auto answer = run_in_time(limit, [=, store = store_] { return std::invoke(act, *store, arguments...); });
      if (answer.valid()) return answer.get();
      shared_->is_silent = true;
    }
    throw c10::DistStoreError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, "the store does not answer");
  }

 public:
  using Store::compareSet;
  using Store::set;

  JobStore(StorePtr store, milliseconds timeout, std::shared_ptr<Shared> shared)
      : Store(timeout), store_(std::move(store)), shared_(std::move(shared)) {}

  StorePtr clone() override { return c10::make_intrusive<JobStore>(ask(timeout_, &Store::clone), timeout_, shared_); }
  void set(const std::string& key, const Bytes& value) override {
    ask(timeout_, [=](Store& store) { store.set(key, value); });
  }
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override {
    return ask(timeout_, [=](Store& store) { return store.compareSet(key, expected, desired); });
  }
  Bytes get(const std::string& key) override { return ask(timeout_ + kGrace, &Store::get, key); }
  int64_t add(const std::string& key, int64_t value) override { return ask(timeout_, &Store::add, key, value); }
  bool deleteKey(const std::string& key) override { return ask(timeout_, &Store::deleteKey, key); }
  bool check(const Keys& keys) override { return ask(timeout_, &Store::check, keys); }
  int64_t getNumKeys() override { return ask(timeout_, &Store::getNumKeys); }
  void wait(const Keys& keys) override { wait(keys, timeout_); }
  void wait(const Keys& keys, const milliseconds& time) override {
    ask(time + kGrace, [=](Store& store) { store.wait(keys, time); });
  }
  // Changes the timeout of this object only. Within one process the clones of a store can be one object, so the timeout
  // of `store_` stays as it is.
  void setTimeout(const milliseconds& timeout) override { timeout_ = timeout; }

  bool hasExtendedApi() const override { return store_->hasExtendedApi(); }
  void append(const std::string& key, const Bytes& value) override { ask(timeout_, &Store::append, key, value); }
  std::vector<Bytes> multiGet(const Keys& keys) override { return ask(timeout_ + kGrace, &Store::multiGet, keys); }
  void multiSet(const Keys& keys, const std::vector<Bytes>& values) override {
    ask(timeout_, &Store::multiSet, keys, values);
  }

 private:
  const StorePtr store_;
  const std::shared_ptr<Shared> shared_;
};

// The connections of this process. They are never destroyed, because threads of process groups that were not destroyed
// may use them while the process exits.
struct Connections {
  Mutex mutex;
  // The key is the address and whether this process hosts the store.
  std::map<std::pair<std::string, bool>, StorePtr> open FSDP_GUARDED_BY(mutex);
};

[[noreturn]] void explain(const RendezvousParameters& rendezvous, bool hosts, const std::string& address,
                          std::chrono::milliseconds timeout, const std::string& what) {
  const std::string place = Ranks{rendezvous.rank, rendezvous.world_size}.where("init_process_group");
  const std::string detail = first_line(what);
  if (hosts && what.find("EADDRINUSE") != std::string::npos) {
    throw UsageError(str_cat(place, "port ", rendezvous.port, " of ", rendezvous.host,
                             " is taken by another program, or by another run. Choose a different MASTER_PORT."));
  }
  const bool rank_0_hosts = !rendezvous.agent_hosts_store;
  const std::string text =
      str_cat(place, "no connection to the rendezvous store at ", address, " within ", in_seconds(timeout), ". Is ",
              rank_0_hosts ? "rank 0" : "the launcher", " running, and is this address correct? (", detail, ")");
  if (rank_0_hosts && !hosts) throw PeerLost(0, text);
  throw Error(text);
}

}  // namespace

StorePtr make_bounded_store(StorePtr store, milliseconds limit, std::shared_ptr<std::atomic<int64_t>> calls) {
  store->setTimeout(limit);
  return c10::make_intrusive<JobStore>(std::move(store), limit, std::shared_ptr<Shared>(new Shared{std::move(calls)}));
}

StorePtr connect_store(const RendezvousParameters& rendezvous, std::chrono::milliseconds timeout) {
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
    if (hosts) {
      // LibTorch alone would listen at every address. It does so if `listen_for_store` fails although the port is free,
      // because an address can lead to this host without being one of its own.
      StoreListener listener = listen_for_store(rendezvous.host, rendezvous.port);
      if (listener.result == StoreListener::Result::kOccupied) throw std::runtime_error("EADDRINUSE");
      if (listener.result == StoreListener::Result::kListens) options.masterListenFd = listener.socket.release();
    }
    // If a program accepts connections but is not a store, LibTorch waits for its answer for ever, and if nothing
    // listens, it waits longer than the timeout.
    auto store = run_in_time(
        timeout, [=, host = rendezvous.host] { return c10::make_intrusive<c10d::TCPStore>(host, options); });
    if (!store.valid()) throw std::runtime_error("nothing answers there, or what answers is not a rendezvous store");
    const auto opened = store.get();
    const MutexLock lock(own.mutex);
    return own.open[{address, hosts}] = opened;
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
