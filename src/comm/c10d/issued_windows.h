#pragma once
/// \file
/// Whether the ranks issue the same operations, found out behind the operations.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/core/fingerprint.h"
#include "comm/core/mutex.h"
#include "comm/core/ranks.h"
#include "comm/failure/verdict.h"

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fsdp {

/// What a rank issued over a device's backend in each order of a family.
///
/// Note [Windows]. A rank keeps a rolling hash of each order's fingerprints. 64 of them are a window, at whose end the
/// ranks compare their hashes through the store, behind the operations: the first to come sets the window's key, the
/// others read it, and rank 0 deletes old ones. After a failure each rank publishes the fingerprints of the window that
/// differs, or its newest ones, and the first one that differs from those of the rank before it or after it is what all
/// ranks throw. Thread safety: all of it.
class IssuedWindows {
 public:
  /// `store`: whose keys are these windows' alone, and a connection of their own.
  IssuedWindows(c10::intrusive_ptr<c10d::Store> store, Ranks ranks)
      : store_(std::move(store)), ranks_(std::move(ranks)) {}

  /// Notes what is about to be issued, whose sequence number counts from 1.
  void note(const std::string& order, const Fingerprint& fingerprint);
  /// What is open counts as a window too, at the same place on every rank.
  void close();
  /// Compares the windows that were closed since the last call. Returns the verdict if one differs.
  std::optional<Verdict> compare();
  /// After a failure.
  void publish();
  /// The first operation that differs, if there is one; the same on every rank. Waits for peers, for a few seconds at
  /// most.
  std::optional<Verdict> disagreement();

 private:
  // The host may be far ahead when ranks learn that they differ.
  static constexpr uint64_t kWindow = 64, kKept = 16 * kWindow;
  struct Sequence {
    uint64_t hash = 0, number = 0;
    std::vector<Fingerprint> newest;  // the n-th at n % kKept
  };
  struct Closed {
    std::string order;
    uint64_t number, hash;
  };

  void close(const std::string& order, const Sequence& sequence) FSDP_REQUIRES(mutex_) {
    closed_.push_back({order, sequence.number, sequence.hash});
  }
  std::optional<Verdict> disagreement_with(int peer);

  const c10::intrusive_ptr<c10d::Store> store_;
  const Ranks ranks_;
  Mutex comparing_;  // whoever compares
  Mutex mutex_;
  std::map<std::string, Sequence> sequences_ FSDP_GUARDED_BY(mutex_);  // by order
  std::deque<Closed> closed_ FSDP_GUARDED_BY(mutex_);                  // and not compared yet
};

}  // namespace fsdp
