#pragma once
/// \file
/// Rendezvous stores that count or delay calls.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

namespace fsdp::test {

/// Calls `before` and then passes the call on to `inner`. Clones of the store do the same.
class WatchedStore : public c10d::Store {
 public:
  using Store::compareSet;
  using Store::set;
  using Bytes = std::vector<uint8_t>;
  using Keys = std::vector<std::string>;

  WatchedStore(c10::intrusive_ptr<c10d::Store> inner, std::function<void()> before)
      : inner_(std::move(inner)), before_(std::move(before)) {}

  c10::intrusive_ptr<c10d::Store> clone() override {
    return before_(), c10::make_intrusive<WatchedStore>(inner_->clone(), before_);
  }
  void set(const std::string& key, const Bytes& value) override { before_(), inner_->set(key, value); }
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override {
    return before_(), inner_->compareSet(key, expected, desired);
  }
  Bytes get(const std::string& key) override { return before_(), inner_->get(key); }
  int64_t add(const std::string& key, int64_t value) override { return before_(), inner_->add(key, value); }
  bool deleteKey(const std::string& key) override { return before_(), inner_->deleteKey(key); }
  bool check(const Keys& keys) override { return before_(), inner_->check(keys); }
  int64_t getNumKeys() override { return before_(), inner_->getNumKeys(); }
  void wait(const Keys& keys) override { before_(), inner_->wait(keys); }
  void wait(const Keys& keys, const std::chrono::milliseconds& time) override { before_(), inner_->wait(keys, time); }
  void setTimeout(const std::chrono::milliseconds& timeout) override { inner_->setTimeout(timeout); }
  bool hasExtendedApi() const override { return inner_->hasExtendedApi(); }
  void append(const std::string& key, const Bytes& value) override { before_(), inner_->append(key, value); }
  std::vector<Bytes> multiGet(const Keys& keys) override { return before_(), inner_->multiGet(keys); }
  void multiSet(const Keys& keys, const std::vector<Bytes>& values) override {
    before_(), inner_->multiSet(keys, values);
  }

 private:
  const c10::intrusive_ptr<c10d::Store> inner_;
  const std::function<void()> before_;
};

/// Simulates the host of a store. It answers `calls` calls; later calls wait until go_on().
class StoreHost {
 public:
  explicit StoreHost(int calls) : left_(calls) {}
  ~StoreHost() { go_on(); }

  /// Counts a call, and waits while the host does not answer.
  void ask() {
    std::unique_lock lock(mutex_);
    ++asked_;
    if (left_-- > 0) return;
    changed_.wait(lock, [&] { return goes_on_; });
  }
  void go_on() {
    std::lock_guard lock(mutex_);
    goes_on_ = true;
    changed_.notify_all();
  }
  int asked() const {
    std::lock_guard lock(mutex_);
    return asked_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int left_, asked_ = 0;
  bool goes_on_ = false;
};

}  // namespace fsdp::test
