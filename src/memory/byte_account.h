#pragma once
/// \file
/// How many bytes a rank holds, by class, now and at most.

#include <array>
#include <atomic>
#include <cstdint>

namespace fsdp::memory {

/// What bytes are for. Of models on an accelerator kHost is what offloading keeps in host memory; kDisk is what is kept
/// in files.
enum class ByteClass : uint8_t { kRows, kWhole, kGradient, kOptimizer, kActivation, kHost, kDisk };
constexpr size_t kByteClasses = 7;

/// Thread safety: all of it.
class ByteAccount {
 public:
  void add(ByteClass cls, int64_t bytes) {
    auto& entry = entries_[static_cast<size_t>(cls)];
    int64_t now = entry.current.fetch_add(bytes) + bytes, peak = entry.peak.load();
    while (now > peak && !entry.peak.compare_exchange_weak(peak, now)) {
    }
  }
  int64_t current(ByteClass cls) const { return entries_[static_cast<size_t>(cls)].current; }
  int64_t peak(ByteClass cls) const { return entries_[static_cast<size_t>(cls)].peak; }
  /// Peaks start again from what is held now.
  void reset_peaks() {
    for (auto& entry : entries_) entry.peak = entry.current.load();
  }

 private:
  struct Entry {
    std::atomic<int64_t> current{0}, peak{0};
  };
  std::array<Entry, kByteClasses> entries_;
};

/// Bytes on an account while this object lives.
class Charge {
 public:
  Charge() = default;
  Charge(ByteAccount& account, ByteClass cls, int64_t bytes) : account_(&account), class_(cls), bytes_(bytes) {
    account_->add(class_, bytes_);
  }
  Charge(Charge&& other) noexcept { swap(other); }
  Charge& operator=(Charge&& other) noexcept {
    Charge(static_cast<Charge&&>(other)).swap(*this);
    return *this;
  }
  ~Charge() {
    if (account_ != nullptr) account_->add(class_, -bytes_);
  }

 private:
  void swap(Charge& other) noexcept {
    std::swap(account_, other.account_);
    std::swap(class_, other.class_);
    std::swap(bytes_, other.bytes_);
  }

  ByteAccount* account_ = nullptr;  // outlives the charge: groups hold both
  ByteClass class_ = ByteClass::kRows;
  int64_t bytes_ = 0;
};

}  // namespace fsdp::memory
