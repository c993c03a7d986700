#include "comm/rendezvous/signed_store.h"

#include <fsdp/error.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "comm/core/message_code.h"
#include "comm/core/text.h"

namespace fsdp {
namespace {

using Bytes = std::vector<uint8_t>;
using Keys = std::vector<std::string>;

class SignedStore : public c10d::Store {
 public:
  using Store::compareSet;
  using Store::set;

  SignedStore(c10::intrusive_ptr<c10d::Store> store, std::string token)
      : Store(store->getTimeout()), store_(std::move(store)), token_(std::move(token)) {}

  c10::intrusive_ptr<c10d::Store> clone() override { return c10::make_intrusive<SignedStore>(store_->clone(), token_); }
  void set(const std::string& key, const Bytes& value) override { store_->set(key, sign(key, value)); }
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override {
    const Bytes found = store_->compareSet(key, expected.empty() ? expected : sign(key, expected), sign(key, desired));
    return found.empty() ? found : verify(key, found);
  }
  Bytes get(const std::string& key) override { return verify(key, store_->get(key)); }
  int64_t add(const std::string& key, int64_t value) override { return store_->add(key, value); }
  bool deleteKey(const std::string& key) override { return store_->deleteKey(key); }
  bool check(const Keys& keys) override { return store_->check(keys); }
  int64_t getNumKeys() override { return store_->getNumKeys(); }
  void wait(const Keys& keys) override { store_->wait(keys); }
  void wait(const Keys& keys, const std::chrono::milliseconds& time) override { store_->wait(keys, time); }
  void setTimeout(const std::chrono::milliseconds& timeout) override {
    timeout_ = timeout;
    store_->setTimeout(timeout);
  }
  // A value that grows by parts would need a code for each; Gloo and NCCL do without it.
  bool hasExtendedApi() const override { return false; }
  std::vector<Bytes> multiGet(const Keys& keys) override {
    auto values = store_->multiGet(keys);
    for (size_t i = 0; i < keys.size(); ++i) values[i] = verify(keys[i], values[i]);
    return values;
  }
  void multiSet(const Keys& keys, const std::vector<Bytes>& values) override {
    std::vector<Bytes> signed_values;
    for (size_t i = 0; i < keys.size(); ++i) signed_values.push_back(sign(keys[i], values[i]));
    store_->multiSet(keys, signed_values);
  }

 private:
  Digest code_of(const std::string& key, const Bytes& value) const {
    std::string message = str_cat(key.size(), ' ', key);
    message.append(value.begin(), value.end());
    return message_code(token_, message);
  }
  Bytes sign(const std::string& key, Bytes value) const {
    const Digest code = code_of(key, value);
    value.insert(value.begin(), code.begin(), code.end());
    return value;
  }
  Bytes verify(const std::string& key, const Bytes& signed_value) const {
    const size_t length = std::min(signed_value.size(), Digest{}.size());
    const Bytes value(signed_value.begin() + static_cast<std::ptrdiff_t>(length), signed_value.end());
    const Digest code = code_of(key, value);
    const auto text = [](const uint8_t* bytes, size_t size) {
      return std::string_view(reinterpret_cast<const char*>(bytes), size);
    };
    if (are_equal_secrets(text(signed_value.data(), length), text(code.data(), code.size()))) return value;
    throw Error(str_cat("[fsdp] what the rendezvous store has under '", key,
                        "' was written by somebody who does not have this job's token. Start all ranks with one "
                        "launcher, or with one value of FSDP_JOB_TOKEN, and choose another MASTER_PORT if other "
                        "programs use this one."));
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::string token_;
};

}  // namespace

c10::intrusive_ptr<c10d::Store> make_signed_store(c10::intrusive_ptr<c10d::Store> store, std::string token) {
  return c10::make_intrusive<SignedStore>(std::move(store), std::move(token));
}

}  // namespace fsdp
