#pragma once
/// \file
/// A rendezvous store whose calls somebody sees.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace fsdp {

/// Passes every call on to `inner` after `before` has seen it. Its clones do the same.
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

}  // namespace fsdp
