#pragma once
/// \file
/// A communicator that records its calls.

#include <mutex>
#include <vector>

#include "support/decorator.h"

namespace fsdp {

/// The collectives of one rank, in the order in which they were issued. Thread safety: any thread may use it.
class OperationLog {
 public:
  struct Entry {
    /// Name of the call: "all_gather", "reduce_scatter", "all_reduce(sum)", ..., or "duplicate".
    std::string operation;
    std::string subject;
    /// Number of bytes of the larger side: of an all_gather's output, of a reduce_scatter's input.
    uint64_t bytes = 0;
    /// Name of the lane: "main", or the name that was given to duplicate().
    std::string lane;
    bool operator==(const Entry&) const = default;
  };

  void append(Entry entry) {
    std::lock_guard lock(mutex_);
    entries_.push_back(std::move(entry));
  }
  std::vector<Entry> entries() const {
    std::lock_guard lock(mutex_);
    return entries_;
  }
  /// Returns the entries of one operation.
  std::vector<Entry> entries(const std::string& operation) const {
    auto entries = this->entries();
    std::erase_if(entries, [&](const Entry& entry) { return entry.operation != operation; });
    return entries;
  }
  /// Returns the sum of the bytes of all entries of one operation.
  uint64_t bytes(const std::string& operation) const {
    uint64_t bytes = 0;
    for (const auto& entry : entries(operation)) bytes += entry.bytes;
    return bytes;
  }
  void clear() {
    std::lock_guard lock(mutex_);
    entries_.clear();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
};

/// Returns a communicator that passes every call on to `inner` and records it in `log`. Duplicates record in the same
/// log.
inline std::shared_ptr<Communicator> make_recording_communicator(std::shared_ptr<Communicator> inner,
                                                                 std::shared_ptr<OperationLog> log) {
  const auto watch = [log = std::move(log)](const std::string& lane, Operation operation, uint64_t bytes, Tag& tag) {
    log->append({std::string(name_of(operation)), tag.subject, bytes, lane});
  };
  return std::make_shared<Watched>(std::move(inner), watch);
}

}  // namespace fsdp
