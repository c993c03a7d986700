#pragma once
/// \file
/// Processes that run programs one after another: the ranks, and one that runs them unsharded.

#include <chrono>
#include <functional>
#include <optional>
#include <vector>

#include "program_fuzz/run.h"

namespace fsdp::test::fuzz {

constexpr int kMostRanks = 4;

struct CrewOptions {
  /// The longest that a rank is held up by a Lag.
  std::chrono::milliseconds longest_lag = std::chrono::milliseconds(10);
  Plant plant = Plant::kNothing;
};

struct CrewReport {
  /// How many of the programs passed.
  size_t passed = 0;
  /// What went wrong in the next one; the crew has ended then.
  std::optional<Finding> finding;
};

/// Runs programs of one world size and one backend until one goes wrong. This process must have one thread.
CrewReport run_crew(const std::vector<Program>& programs, const CrewOptions& options);

}  // namespace fsdp::test::fuzz
