#pragma once
/// \file
/// Bytes of memory that several hold.

#include <memory>
#include <mutex>
#include <unordered_map>

#include "memory/byte_account.h"

namespace fsdp::memory {

/// Counts a piece of memory once, however many hold it. Thread safety: all of it.
class ChargesOnce {
 public:
  /// On `account`, unless somebody has a charge for `memory` already: then that one. The holder keeps the memory for as
  /// long as the charge, so no other memory has its address.
  std::shared_ptr<const Charge> hold(const void* memory, const std::shared_ptr<ByteAccount>& account, ByteClass cls,
                                     int64_t bytes) {
    const std::lock_guard lock(mutex_);
    std::erase_if(held_, [](const auto& held) { return held.second.expired(); });
    if (auto charge = held_[memory].lock()) return charge;
    auto charge = std::make_shared<const Charge>(account, cls, bytes);
    held_[memory] = charge;
    return charge;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const void*, std::weak_ptr<const Charge>> held_;
};

}  // namespace fsdp::memory
