#pragma once
/// \file
/// What is done with programs: they are drawn, run by processes and counted. Those that go wrong are simplified and
/// printed.

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "program_fuzz/run.h"

namespace fsdp::test::fuzz {

class Rules;

/// What programs are drawn from.
struct Choice {
  std::vector<std::string> backends{"shm", "gloo"};
  std::vector<int> world_sizes{2, 3, 4};
  std::vector<Kind> without = {};  ///< kinds of statements that are left out
};

/// The program with this seed, which is the same everywhere.
Program generate(uint64_t seed, const Choice& choice);

constexpr int kMostRanks = 4;

struct CrewOptions {
  /// The longest time that a Lag holds up a rank.
  std::chrono::milliseconds longest_lag = std::chrono::milliseconds(10);
  Plant plant = Plant::kNothing;
};

struct CrewReport {
  /// How many of the programs passed.
  size_t passed = 0;
  /// What went wrong in the next program, if something did; the crew has then ended.
  std::optional<Finding> finding;
};

/// Runs programs of one world size and one backend until one goes wrong. One process for each rank runs them sharded,
/// and another one runs them unsharded. This process must have one thread.
CrewReport run_crew(const std::vector<Program>& programs, const CrewOptions& options);

/// Counts how often each thing that a fuzzed program can do took place.
class Census {
 public:
  Census();
  /// Adds a program that ran to its end.
  void add(const Program& program);
  std::string table() const;
  /// Lists the classes that never took place, one to a line.
  std::string missing() const;

 private:
  /// A name for which `holds` is never true is missing in the end.
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

/// Simplifies the program as long as the same kind of thing goes wrong, for some minutes at most. Returns nothing if
/// the program does not go wrong when it runs alone several times.
std::optional<Shrunk> shrink(const Program& program, const Finding& finding, const CrewOptions& options);

/// Prints the program as C++ that runs it again.
std::string print_cpp(const Program& program);

}  // namespace fsdp::test::fuzz
