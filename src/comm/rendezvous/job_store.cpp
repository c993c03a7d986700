#include "comm/rendezvous/job_store.h"

#include <fsdp/error.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "comm/core/store_message.h"
#include "comm/core/text.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;
using Bytes = std::vector<uint8_t>;
using Keys = std::vector<std::string>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

// Beyond the time that a wait for keys takes by itself.
constexpr milliseconds kGrace{1000};

// What all clones of a store have in common.
struct Shared {
  std::shared_ptr<std::atomic<int64_t>> calls;
  std::string token;
  std::atomic<bool> is_silent = false;

  Bytes sign(const std::string& key, Bytes value) const {
    if (token.empty()) return value;
    std::string message = str_cat(key.size(), ' ', key);
    message.append(value.begin(), value.end());
    const Digest code = message_code(token, message);
    value.insert(value.begin(), code.begin(), code.end());
    return value;
  }
  Bytes verify(const std::string& key, const Bytes& signed_value) const {
    if (token.empty()) return signed_value;
    const size_t length = std::min(signed_value.size(), Digest{}.size());
    const Bytes value(signed_value.begin() + static_cast<std::ptrdiff_t>(length), signed_value.end());
    const Bytes expected = sign(key, value);
    const std::string found_text(signed_value.begin(), signed_value.end());
    if (are_equal_secrets(found_text, {reinterpret_cast<const char*>(expected.data()), expected.size()})) return value;
    throw Error(str_cat("[fsdp] what the rendezvous store has under '", key,
                        "' was written by somebody who does not have this job's token. Start all ranks with one "
                        "launcher, or with one value of FSDP_JOB_TOKEN, and choose another MASTER_PORT if other "
                        "programs use this one."));
  }
};

class JobStore : public c10d::Store {
  // What `act` gives for the store, which it must own.
  template <class Act>
  auto ask(milliseconds limit, Act act) const {
    if (shared_->calls) ++*shared_->calls;
    if (!shared_->is_silent) {
      if (auto answer = run_in_time(limit, [=, store = store_] { return act(*store); })) return *std::move(answer);
      shared_->is_silent = true;
    }
    throw StoreIsSilent({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, "it does not answer");
  }

 public:
  using Store::compareSet;
  using Store::set;

  JobStore(StorePtr store, milliseconds timeout, std::shared_ptr<Shared> shared)
      : Store(timeout), store_(std::move(store)), shared_(std::move(shared)) {}

  StorePtr clone() override {
    auto other = ask(timeout_, [](Store& store) { return store.clone(); });
    return c10::make_intrusive<JobStore>(std::move(other), timeout_, shared_);
  }
  void set(const std::string& key, const Bytes& value) override {
    ask(timeout_, [=, value = shared_->sign(key, value)](Store& store) { return store.set(key, value), true; });
  }
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override {
    const auto before = expected.empty() ? expected : shared_->sign(key, expected);
    const Bytes found = ask(timeout_, [=, after = shared_->sign(key, desired)](Store& store) {
      return store.compareSet(key, before, after);
    });
    return found.empty() ? found : shared_->verify(key, found);
  }
  Bytes get(const std::string& key) override {
    return shared_->verify(key, ask(timeout_ + kGrace, [=](Store& store) { return store.get(key); }));
  }
  int64_t add(const std::string& key, int64_t value) override {
    return ask(timeout_, [=](Store& store) { return store.add(key, value); });
  }
  bool deleteKey(const std::string& key) override {
    return ask(timeout_, [=](Store& store) { return store.deleteKey(key); });
  }
  bool check(const Keys& keys) override {
    return ask(timeout_, [=](Store& store) { return store.check(keys); });
  }
  int64_t getNumKeys() override {
    return ask(timeout_, [](Store& store) { return store.getNumKeys(); });
  }
  void wait(const Keys& keys) override { wait(keys, timeout_); }
  void wait(const Keys& keys, const milliseconds& time) override {
    ask(time + kGrace, [=](Store& store) { return store.wait(keys, time), true; });
  }
  // Of this connection alone: clones of a store inside one process are one store.
  void setTimeout(const milliseconds& timeout) override { timeout_ = timeout; }

  // A value that grows by parts would need a code for each; Gloo and NCCL do without it.
  bool hasExtendedApi() const override { return shared_->token.empty() && store_->hasExtendedApi(); }
  void append(const std::string& key, const Bytes& value) override {
    ask(timeout_, [=](Store& store) { return store.append(key, value), true; });
  }
  std::vector<Bytes> multiGet(const Keys& keys) override {
    auto values = ask(timeout_ + kGrace, [=](Store& store) { return store.multiGet(keys); });
    for (size_t i = 0; i < keys.size(); ++i) values[i] = shared_->verify(keys[i], values[i]);
    return values;
  }
  void multiSet(const Keys& keys, const std::vector<Bytes>& values) override {
    std::vector<Bytes> signed_values;
    for (size_t i = 0; i < keys.size(); ++i) signed_values.push_back(shared_->sign(keys[i], values[i]));
    ask(timeout_, [=](Store& store) { return store.multiSet(keys, signed_values), true; });
  }

 private:
  const StorePtr store_;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace

StorePtr make_bounded_store(StorePtr store, milliseconds limit, std::shared_ptr<std::atomic<int64_t>> calls,
                            const std::string& token) {
  store->setTimeout(limit);
  return c10::make_intrusive<JobStore>(std::move(store), limit,
                                       std::shared_ptr<Shared>(new Shared{std::move(calls), token}));
}

}  // namespace fsdp
