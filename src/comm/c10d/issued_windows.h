#pragma once
/// \file
/// Checks whether all ranks issued the same operations, after these were issued.

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

namespace fsdp {

/// The operations that a rank issued over a device's backend, in each queue of a communicator and its duplicates.
///
/// Note [Windows]. A rank keeps a rolling hash of each queue's fingerprints. Every 64 operations are a window. When a
/// window is complete, the ranks compare their hashes through the store while later operations already run: the first
/// rank to come sets the window's key, the others read it, and rank 0 deletes old keys. After a failure each rank
/// publishes the fingerprints of the window that differs, or its newest ones. The first fingerprint that differs
/// between neighbouring ranks becomes the error of all ranks. Thread-safe.
class IssuedWindows {
 public:
  /// `store` must be a separate connection, and only these windows may use its keys.
  IssuedWindows(c10::intrusive_ptr<c10d::Store> store, Ranks ranks)
      : store_(std::move(store)), ranks_(std::move(ranks)) {}

  /// Records an operation that is about to be issued. Its sequence number counts from 1.
  void note(const std::string& queue, const Fingerprint& fingerprint);
  /// Ends the windows that are not complete. Every rank must call it at the same place.
  void close();
  /// Compares the windows that ended since the last call. Returns a verdict if one differs.
  std::optional<Verdict> compare();
  /// Publishes this rank's fingerprints. Called after a failure.
  void publish();
  /// Returns a verdict about the first operation that differs, the same on every rank; nullopt if there is none. Waits
  /// for peers, at most a few seconds.
  std::optional<Verdict> disagreement();

 private:
  // Many windows are kept, because the host may be far ahead when the ranks learn that they differ.
  static constexpr uint64_t kWindow = 64, kKept = 16 * kWindow;
  struct Sequence {
    uint64_t hash = 0, number = 0;
    std::deque<Fingerprint> newest;
  };
  struct Closed {
    std::string queue;
    uint64_t number, hash;
  };

  std::optional<Verdict> disagreement_with(int peer);

  const c10::intrusive_ptr<c10d::Store> store_;
  const Ranks ranks_;
  Mutex comparing_;  // held by the thread that compares
  Mutex mutex_;
  std::map<std::string, Sequence> sequences_ FSDP_GUARDED_BY(mutex_);  // the key is the queue
  std::deque<Closed> closed_ FSDP_GUARDED_BY(mutex_);                  // windows that are not compared yet
};

}  // namespace fsdp
