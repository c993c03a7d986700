#pragma once
/// \file
/// Generates programs, runs them in processes and counts what they do. A program that goes wrong is simplified and
/// printed.

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "program_fuzz/run.h"

namespace fsdp::test::fuzz {

class Rules;

/// Says which programs may be generated.
struct Choice {
  std::vector<std::string> backends{"shm", "gloo"};
  std::vector<int> world_sizes{2, 3, 4};
  std::vector<Kind> without = {};  ///< kinds of statements that are left out
};

/// Returns the program with this seed. It is the same on every machine.
Program generate(uint64_t seed, const Choice& choice);

constexpr int kMostRanks = 4;

struct CrewOptions {
  /// Longest time for which a Lag holds up a rank.
  std::chrono::milliseconds longest_lag = std::chrono::milliseconds(10);
  Plant plant = Plant::kNothing;
};

struct CrewReport {
  /// Number of programs that passed.
  size_t passed = 0;
  /// What went wrong in the program after these, if anything did. The crew has then ended.
  std::optional<Finding> finding;
};

/// Runs programs of one world size and one backend until one of them goes wrong. One process per rank runs them
/// sharded, and another process runs them unsharded. The calling process must have one thread.
CrewReport run_crew(const std::vector<Program>& programs, const CrewOptions& options);

/// Counts how many programs did each of the things that a program can do.
class Census {
 public:
  Census();
  /// Counts a program that ran to its end.
  void add(const Program& program);
  std::string table() const;
  /// Lists everything that no program did, one name per line.
  std::string missing() const;

 private:
  /// Counts the program under this name if `holds`. missing() lists a name that was never counted.
  void count(bool holds, const std::string& name) { counts_[name] += holds ? 1 : 0; }
  void add_model(const Program& program, const Model& model);
  void add_group(const Program& program, const Node& options);
  void add_statement(const Program& program, const Statement& statement, const Rules& rules);

  std::map<std::string, int64_t> counts_;
};

struct Shrunk {
  Program program;
  Finding finding;
};

/// Simplifies the program as long as it fails in the same way, for some minutes at most. Returns nothing if the program
/// does not fail when it runs alone several times.
std::optional<Shrunk> shrink(const Program& program, const Finding& finding, const CrewOptions& options);

/// Returns C++ code that runs the program again.
std::string print_cpp(const Program& program);

}  // namespace fsdp::test::fuzz
