#pragma once
/// \file
/// A communicator that writes down what is asked of it.

#include <fsdp/communicator.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace fsdp {

/// The collectives of one rank, in the order in which they were issued. Thread safe.
class OperationLog {
 public:
  struct Entry {
    /// "all_gather", "reduce_scatter", "all_reduce(sum)", ..., "duplicate"
    std::string operation;
    std::string subject;
    /// Of the whole operation: an all_gather's output, a reduce_scatter's input.
    uint64_t bytes = 0;
    /// "main", or the name given to duplicate().
    std::string lane;
    bool operator==(const Entry&) const = default;
  };

  void append(Entry entry);
  std::vector<Entry> entries() const;
  /// Those of one operation.
  std::vector<Entry> entries(const std::string& operation) const;
  /// Of all its entries together.
  uint64_t bytes(const std::string& operation) const;
  void clear();

 private:
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
};

/// Passes everything on to `inner`; what it is asked goes to `log`. Its duplicates record into the same log.
std::shared_ptr<Communicator> make_recording_communicator(std::shared_ptr<Communicator> inner,
                                                          std::shared_ptr<OperationLog> log, std::string lane = "main");

}  // namespace fsdp
