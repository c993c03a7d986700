#pragma once
/// \file
/// Counters of the bytes that a rank holds, now and at most, by class, for each of its groups and for all together.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>

#include "comm/core/mutex.h"

namespace fsdp::memory {

/// The uses of memory that an account counts separately.
///
/// - kHost counts what offloading keeps in host memory for a model on an accelerator.
/// - kDisk counts what lies in files.
/// - kActivation counts the tensors that activation checkpoints keep.
/// - kForward counts what forward allocated, and contains what activation checkpoints keep of it. It is counted only
///   while fsdp records forward's allocations.
enum class ByteClass : uint8_t { kRows, kWhole, kGradient, kOptimizer, kActivation, kForward, kHost, kDisk };
constexpr size_t kByteClasses = 8;

/// Function that gets each change of an account: the account's number, the class, and the bytes of that class that the
/// account has now. Any thread may call it. It must not change accounts.
using ByteObserver = std::function<void(int64_t part, ByteClass cls, int64_t now)>;

/// Counts bytes by class. Thread safety: any thread may call any method at any time.
class ByteAccount {
 public:
  ByteAccount() = default;
  /// Makes an account that is a part of `whole`: everything that this account counts, `whole` counts too.
  explicit ByteAccount(std::shared_ptr<ByteAccount> whole) : whole_(std::move(whole)) {}
  ByteAccount(const ByteAccount&) = delete;
  ByteAccount& operator=(const ByteAccount&) = delete;

  void add(ByteClass cls, int64_t bytes) {
    const int64_t now = count(cls, bytes);
    if (whole_) whole_->count(cls, bytes);
    auto& observed = whole_ ? *whole_ : *this;
    if (observed.is_observed_.load(std::memory_order_relaxed)) observed.tell(number_, cls, now);
  }
  /// Returns the account of which this one is a part; this account if it is no part.
  const ByteAccount& whole() const { return whole_ ? *whole_ : *this; }
  int64_t current(ByteClass cls) const { return entries_[static_cast<size_t>(cls)].current; }
  int64_t peak(ByteClass cls) const { return entries_[static_cast<size_t>(cls)].peak; }
  /// Sets every peak to the current number of bytes.
  void reset_peaks() {
    for (auto& entry : entries_) entry.peak = entry.current.load();
  }

  /// Sets the number by which an observer knows this account. It is 0 until then.
  void number(int64_t number) { number_ = number; }
  /// Sets the observer, which from now on gets every change of this account and its parts; null removes the observer.
  /// Returns false, and changes nothing, if the account already has another observer.
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

/// Adds bytes to an account for as long as this object or a copy of it lives.
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

/// Counts each piece of memory once, however many users hold it. Thread safety: any thread may call it at any time.
class ChargesOnce {
 public:
  /// Returns a charge of `bytes` on `account` for `memory`, or the existing charge if another user already holds one
  /// for it. The caller must keep the memory for as long as the charge, so that no other memory gets its address.
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
