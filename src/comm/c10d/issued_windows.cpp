#include "comm/c10d/issued_windows.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "comm/core/check.h"
#include "comm/core/store_message.h"

namespace fsdp {
namespace {

constexpr std::chrono::seconds kForPeers{2};
constexpr std::chrono::milliseconds kForOthers{500};

std::string key_of(const std::string& queue, uint64_t number) { return str_cat("window/", queue, '/', number); }
// The key under which a rank writes the number of the last operation of the window that differs.
constexpr const char* kDiffers = "differs";
std::string records_of(int rank) { return str_cat("records/", rank); }

// The fingerprints that a rank publishes: for each queue, their bytes in ascending order of their numbers.
using Records = std::map<std::string, std::string>;

std::vector<Fingerprint> fingerprints_in(const std::string& bytes) {
  std::vector<Fingerprint> found(bytes.size() / sizeof(Fingerprint));
  for (size_t i = 0; i < found.size(); ++i)
    std::memcpy(&found[i], bytes.data() + i * sizeof(Fingerprint), sizeof(Fingerprint));
  return found;
}

}  // namespace

void IssuedWindows::note(const std::string& queue, const Fingerprint& fingerprint) {
  const MutexLock lock(mutex_);
  auto& sequence = sequences_[queue];
  sequence.number = fingerprint.sequence;
  sequence.hash = hash_compared(fingerprint, sequence.hash);
  sequence.newest.push_back(fingerprint);
  if (sequence.newest.size() > kKept) sequence.newest.pop_front();
  if (sequence.number % kWindow == 0) closed_.push_back({queue, sequence.number, sequence.hash});
}

void IssuedWindows::close() {
  const MutexLock lock(mutex_);
  for (const auto& [queue, sequence] : sequences_)
    if (sequence.number % kWindow != 0) closed_.push_back({queue, sequence.number, sequence.hash});
}

std::optional<Verdict> IssuedWindows::compare() {
  const MutexLock one(comparing_);
  while (true) {
    MutexLock lock(mutex_);
    if (closed_.empty()) return std::nullopt;
    const auto [queue, number, hash] = std::move(closed_.front());
    closed_.pop_front();
    lock.unlock();
    const auto mine = std::to_string(hash);
    const auto found = store_->compareSet(key_of(queue, number), "", mine);
    if (found != mine) {
      store_->set(kDiffers, std::to_string(number));
      return Verdict{Verdict::Kind::kMismatch, ranks_.name(),
                     str_cat("ranks issued different collectives before collective #", number, '.', kLookForDifference,
                             "a branch that depends on the rank or on its data.")};
    }
    if (ranks_.rank == 0 && number > kKept) store_->deleteKey(key_of(queue, number - kKept));
  }
}

void IssuedWindows::publish() {
  const bool is_known = store_->check({kDiffers});
  const uint64_t differs = is_known ? std::stoull(store_->get_to_str(kDiffers)) : UINT64_MAX;
  Records records;
  {
    const MutexLock lock(mutex_);
    for (const auto& [queue, sequence] : sequences_) {
      const uint64_t last = std::min(sequence.number, differs);
      for (const auto& newest : sequence.newest)
        if (newest.sequence <= last && newest.sequence + 2 * kWindow > last)
          records[queue].append(reinterpret_cast<const char*>(&newest), sizeof(newest));
    }
  }
  store_->set(records_of(ranks_.rank), encode(records));
}

std::optional<Verdict> IssuedWindows::disagreement() {
  const int size = ranks_.world_size;
  for (const int step : {1, size - 1})
    if (const auto found = disagreement_with((ranks_.rank + step) % size))
      return decode<Verdict>(store_->compareSet("disagreement", "", encode(*found)));
  if (!try_to([this] { store_->wait({"disagreement"}, kForOthers); })) return std::nullopt;
  return decode<Verdict>(store_->get_to_str("disagreement"));
}

std::optional<Verdict> IssuedWindows::disagreement_with(int peer) {
  Records mine, theirs;
  const bool has_told = try_to([&] {
    store_->wait({records_of(ranks_.rank), records_of(peer)}, kForPeers);
    mine = decode<Records>(store_->get_to_str(records_of(ranks_.rank)));
    theirs = decode<Records>(store_->get_to_str(records_of(peer)));
  });
  if (!has_told) return std::nullopt;  // the peer is lost, and the roll call reports it
  for (const auto& [queue, own] : mine) {
    const auto others = fingerprints_in(theirs[queue]);
    for (const auto& a : fingerprints_in(own)) {
      const auto b = std::ranges::find(others, a.sequence, &Fingerprint::sequence);
      if (b == others.end()) continue;
      if (const auto differs = difference(a, ranks_.rank, *b, peer); !differs.empty())
        return fsdp::disagreement(ranks_, a, peer, *b, differs);
    }
  }
  return std::nullopt;
}

}  // namespace fsdp
