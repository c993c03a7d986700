#include "comm/c10d/issued_windows.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "comm/core/message.h"

namespace fsdp {
namespace {

constexpr std::chrono::seconds kForPeers{2};
constexpr std::chrono::milliseconds kForOthers{500};

std::string key_of(const std::string& order, uint64_t number) { return str_cat("window/", order, '/', number); }
// The key under which a rank says which window differs, by the number of that window's last operation.
constexpr const char* kDiffers = "differs";
std::string records_of(int rank) { return str_cat("records/", rank); }

// What a rank publishes: fingerprints as they lie in memory, in ascending order of their numbers.
using Records = std::map<std::string, std::vector<std::string>>;

Fingerprint fingerprint_in(const std::string& bytes) {
  Fingerprint fingerprint;
  std::memcpy(&fingerprint, bytes.data(), std::min(bytes.size(), sizeof(fingerprint)));
  return fingerprint;
}

}  // namespace

void IssuedWindows::note(const std::string& order, const Fingerprint& fingerprint) {
  std::lock_guard lock(mutex_);
  auto& sequence = sequences_[order];
  sequence.number = fingerprint.sequence;
  sequence.hash = hash_compared(fingerprint, sequence.hash);
  sequence.newest.resize(kKept);
  sequence.newest[sequence.number % kKept] = fingerprint;
  if (sequence.number % kWindow == 0) close(order, sequence);
}

void IssuedWindows::close() {
  std::lock_guard lock(mutex_);
  for (const auto& [order, sequence] : sequences_)
    if (sequence.number % kWindow != 0) close(order, sequence);
}

std::optional<Verdict> IssuedWindows::compare() {
  std::lock_guard one(comparing_);
  while (true) {
    std::unique_lock lock(mutex_);
    if (closed_.empty()) return std::nullopt;
    const auto [order, number, hash] = std::move(closed_.front());
    closed_.pop_front();
    lock.unlock();
    const auto mine = std::to_string(hash);
    const auto found = store_->compareSet(key_of(order, number), "", mine);
    if (found != mine) {
      store_->set(kDiffers, std::to_string(number));
      return Verdict{Verdict::Kind::kMismatch, ranks_.name(),
                     str_cat("ranks issued different collectives before #", number, '.', kLookForDifference,
                             "a branch that depends on the rank or on its data.")};
    }
    if (ranks_.rank == 0 && number > kKept) store_->deleteKey(key_of(order, number - kKept));
  }
}

void IssuedWindows::publish() {
  const bool is_known = store_->check({kDiffers});
  const uint64_t differs = is_known ? std::stoull(store_->get_to_str(kDiffers)) : UINT64_MAX;
  Records records;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [order, sequence] : sequences_) {
      const uint64_t last = std::min(sequence.number, differs);
      for (uint64_t i = last - std::min(last, 2 * kWindow) + 1; i <= last; ++i) {
        if (i + kKept <= sequence.number) continue;  // it is no longer there
        const auto* bytes = reinterpret_cast<const char*>(&sequence.newest[i % kKept]);
        records[order].emplace_back(bytes, sizeof(Fingerprint));
      }
    }
  }
  store_->set(records_of(ranks_.rank), encode(records));
}

std::optional<Verdict> IssuedWindows::disagreement() {
  const int size = ranks_.world_size;
  for (const int step : {1, size - 1})
    if (const auto found = disagreement_with((ranks_.rank + step) % size))
      return decode<Verdict>(store_->compareSet("disagreement", "", encode(*found)));
  try {
    store_->wait({"disagreement"}, kForOthers);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  return decode<Verdict>(store_->get_to_str("disagreement"));
}

std::optional<Verdict> IssuedWindows::disagreement_with(int peer) {
  Records mine, theirs;
  try {
    store_->wait({records_of(ranks_.rank), records_of(peer)}, kForPeers);
    mine = decode<Records>(store_->get_to_str(records_of(ranks_.rank)));
    theirs = decode<Records>(store_->get_to_str(records_of(peer)));
  } catch (const std::exception&) {
    return std::nullopt;  // it is lost, which others say
  }
  for (const auto& [order, own] : mine)
    for (const auto& bytes : own) {
      const auto a = fingerprint_in(bytes);
      for (const auto& other : theirs[order]) {
        const auto b = fingerprint_in(other);
        if (a.sequence != b.sequence) continue;
        if (const auto differs = difference(a, ranks_.rank, b, peer); !differs.empty())
          return fsdp::disagreement(ranks_, a, peer, b, differs);
      }
    }
  return std::nullopt;
}

}  // namespace fsdp
