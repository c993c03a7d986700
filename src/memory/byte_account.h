#pragma once
/// \file
/// How many bytes a rank holds, by class, now and at most; of all its groups and of each.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>

#include "comm/core/mutex.h"

namespace fsdp::memory {

/// What bytes are for. Of models on an accelerator kHost is what offloading keeps in host memory; kDisk is what is kept
/// in files. kActivation is what checkpoints of activations keep; kForward is what forward allocated, while that is
/// recorded, with what checkpoints keep of it.
enum class ByteClass : uint8_t { kRows, kWhole, kGradient, kOptimizer, kActivation, kForward, kHost, kDisk };
constexpr size_t kByteClasses = 8;

/// Is told of each change: of the account's number, and what that has of the class now. Any thread; must not change
/// accounts.
using ByteObserver = std::function<void(int64_t part, ByteClass cls, int64_t now)>;

/// Thread safety: all of it.
class ByteAccount {
 public:
  ByteAccount() = default;
  /// What it counts, `whole` counts too.
  explicit ByteAccount(std::shared_ptr<ByteAccount> whole) : whole_(std::move(whole)) {}
  ByteAccount(const ByteAccount&) = delete;
  ByteAccount& operator=(const ByteAccount&) = delete;

  void add(ByteClass cls, int64_t bytes) {
    const int64_t now = count(cls, bytes);
    if (whole_) whole_->count(cls, bytes);
    auto& observed = whole_ ? *whole_ : *this;
    if (observed.is_observed_.load(std::memory_order_relaxed)) observed.tell(number_, cls, now);
  }
  /// The account that counts this one and others; itself if there is none.
  const ByteAccount& whole() const { return whole_ ? *whole_ : *this; }
  int64_t current(ByteClass cls) const { return entries_[static_cast<size_t>(cls)].current; }
  int64_t peak(ByteClass cls) const { return entries_[static_cast<size_t>(cls)].peak; }
  /// Peaks start again from what is held now.
  void reset_peaks() {
    for (auto& entry : entries_) entry.peak = entry.current.load();
  }

  /// By which an observer knows the account; 0 unless it is said.
  void number(int64_t number) { number_ = number; }
  /// From now on it is told of what this account and its parts count; null: nobody is. Returns false, and changes
  /// nothing, where another one is told already.
  bool observe(ByteObserver observer) {
    const MutexLock lock(mutex_);
    if (observer && observer_) return false;
    is_observed_ = observer != nullptr;
    observer_ = std::move(observer);
    return true;
  }

 private:
  struct Entry {
    std::atomic<int64_t> current{0}, peak{0};
  };

  int64_t count(ByteClass cls, int64_t bytes) {
    auto& entry = entries_[static_cast<size_t>(cls)];
    int64_t now = entry.current.fetch_add(bytes) + bytes, peak = entry.peak.load();
    while (now > peak && !entry.peak.compare_exchange_weak(peak, now)) {
    }
    return now;
  }
  void tell(int64_t part, ByteClass cls, int64_t now) {
    const MutexLock lock(mutex_);
    if (observer_) observer_(part, cls, now);
  }

  std::array<Entry, kByteClasses> entries_;
  std::shared_ptr<ByteAccount> whole_;
  std::atomic<int64_t> number_ = 0;
  std::atomic<bool> is_observed_ = false;
  Mutex mutex_;
  ByteObserver observer_ FSDP_GUARDED_BY(mutex_);
};

/// Bytes on an account while this object, or a copy of it, lives.
class Charge {
 public:
  Charge() = default;
  Charge(std::shared_ptr<ByteAccount> account, ByteClass cls, int64_t bytes) {
    account->add(cls, bytes);
    held_ = {nullptr, [account = std::move(account), cls, bytes](void*) { account->add(cls, -bytes); }};
  }

 private:
  std::shared_ptr<void> held_;
};

/// Counts a piece of memory once, however many hold it. Thread safety: all of it.
class ChargesOnce {
 public:
  /// On `account`, unless somebody has a charge for `memory` already: then that one. The holder keeps the memory for as
  /// long as the charge, so no other memory has its address.
  std::shared_ptr<const Charge> hold(const void* memory, const std::shared_ptr<ByteAccount>& account, ByteClass cls,
                                     int64_t bytes) {
    const MutexLock lock(mutex_);
    std::erase_if(held_, [](const auto& held) { return held.second.expired(); });
    if (auto charge = held_[memory].lock()) return charge;
    auto charge = std::make_shared<const Charge>(account, cls, bytes);
    held_[memory] = charge;
    return charge;
  }

 private:
  Mutex mutex_;
  std::unordered_map<const void*, std::weak_ptr<const Charge>> held_ FSDP_GUARDED_BY(mutex_);
};

}  // namespace fsdp::memory
