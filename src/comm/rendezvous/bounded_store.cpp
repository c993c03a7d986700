#include "comm/rendezvous/bounded_store.h"

#include <atomic>
#include <memory>
#include <utility>

#include "comm/rendezvous/in_time.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;
using Bytes = std::vector<uint8_t>;
using Keys = std::vector<std::string>;

// Beyond the time that a wait for keys takes by itself.
constexpr milliseconds kGrace{1000};

class BoundedStore : public c10d::Store {
  template <class Act>
  auto ask(milliseconds limit, Act act) const {
    if (calls_) ++*calls_;
    if (!*silent_) {
      if (auto answer = run_in_time(limit, std::move(act))) return *std::move(answer);
      *silent_ = true;
    }
    throw StoreIsSilent({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, "it does not answer");
  }

 public:
  using Store::compareSet;
  using Store::set;

  BoundedStore(c10::intrusive_ptr<c10d::Store> store, milliseconds limit, std::shared_ptr<std::atomic<bool>> silent,
               std::shared_ptr<std::atomic<int64_t>> calls)
      : Store(limit), store_(std::move(store)), silent_(std::move(silent)), calls_(std::move(calls)) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    auto other = ask(timeout_, [store = store_] { return store->clone(); });
    return c10::make_intrusive<BoundedStore>(std::move(other), timeout_, silent_, calls_);
  }
  void set(const std::string& key, const Bytes& value) override {
    ask(timeout_, [=, store = store_] { return store->set(key, value), true; });
  }
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override {
    return ask(timeout_, [=, store = store_] { return store->compareSet(key, expected, desired); });
  }
  Bytes get(const std::string& key) override {
    return ask(timeout_ + kGrace, [=, store = store_] { return store->get(key); });
  }
  int64_t add(const std::string& key, int64_t value) override {
    return ask(timeout_, [=, store = store_] { return store->add(key, value); });
  }
  bool deleteKey(const std::string& key) override {
    return ask(timeout_, [=, store = store_] { return store->deleteKey(key); });
  }
  bool check(const Keys& keys) override {
    return ask(timeout_, [=, store = store_] { return store->check(keys); });
  }
  int64_t getNumKeys() override {
    return ask(timeout_, [store = store_] { return store->getNumKeys(); });
  }
  void wait(const Keys& keys) override { wait(keys, timeout_); }
  void wait(const Keys& keys, const milliseconds& time) override {
    ask(time + kGrace, [=, store = store_] { return store->wait(keys, time), true; });
  }
  // Of this connection alone: clones of a store inside one process are one store.
  void setTimeout(const milliseconds& timeout) override { timeout_ = timeout; }

  bool hasExtendedApi() const override { return store_->hasExtendedApi(); }
  void append(const std::string& key, const Bytes& value) override {
    ask(timeout_, [=, store = store_] { return store->append(key, value), true; });
  }
  std::vector<Bytes> multiGet(const Keys& keys) override {
    return ask(timeout_ + kGrace, [=, store = store_] { return store->multiGet(keys); });
  }
  void multiSet(const Keys& keys, const std::vector<Bytes>& values) override {
    ask(timeout_, [=, store = store_] { return store->multiSet(keys, values), true; });
  }

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
  // One for all clones.
  const std::shared_ptr<std::atomic<bool>> silent_;
  const std::shared_ptr<std::atomic<int64_t>> calls_;
};

}  // namespace

c10::intrusive_ptr<c10d::Store> make_bounded_store(c10::intrusive_ptr<c10d::Store> store, milliseconds limit,
                                                   std::shared_ptr<std::atomic<int64_t>> calls) {
  store->setTimeout(limit);
  return c10::make_intrusive<BoundedStore>(std::move(store), limit, std::make_shared<std::atomic<bool>>(false),
                                           std::move(calls));
}

}  // namespace fsdp
