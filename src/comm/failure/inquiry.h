#pragma once
/// \file
/// Finds out, through the store, whether all ranks wait for each other.

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "comm/failure/standing.h"

namespace fsdp {

/// One per rank. A rank that has stood still for a second is counted in the store; the one that makes the count
/// complete asks all of them twice how they stand. So ranks that wait for one that computes cost the store a question a
/// look, and nothing is asked. See Note [Inquiry]. Thread safety: one thread.
class Inquiry {
 public:
  Inquiry(c10::intrusive_ptr<c10d::Store> store, Ranks ranks) : store_(std::move(store)), ranks_(std::move(ranks)) {}

  /// To be called twice a second, more often while `is_under_way()`. The verdict, if all ranks wait for each other and
  /// it was this rank that asked. Throws what the store throws.
  std::optional<Verdict> look(const Standing& own);
  bool is_under_way() const { return std::chrono::steady_clock::now() < brisk_until_; }

 private:
  using Time = std::chrono::steady_clock::time_point;

  void withdraw();
  void answer(const Standing& own);
  std::optional<Verdict> ask(const Standing& own, Time now);
  void ask_next(const Standing& own, Time now);
  void give_up(Time now);
  std::vector<std::string> answers_to_question() const;

  const c10::intrusive_ptr<c10d::Store> store_;
  const Ranks ranks_;
  uint64_t moves_ = 0;
  Time still_since_{}, brisk_until_{};
  bool is_counted_ = false, asks_ = false;
  int64_t answered_ = 0;
  // Of the rank that asks.
  int64_t question_ = 0;  // 0: none is open
  std::vector<Standing> before_;
  Time asked_at_{}, next_{};
  std::chrono::milliseconds pause_{};
};

}  // namespace fsdp
