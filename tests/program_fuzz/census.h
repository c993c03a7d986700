#pragma once
/// \file
/// How often everything that a fuzzed program can do took place.

#include <map>
#include <string>

#include "program_fuzz/program.h"

namespace fsdp::test::fuzz {

class Rules;

class Census {
 public:
  Census();
  /// A program that ran to its end.
  void add(const Program& program);
  std::string table() const;
  /// Lists the classes that never took place, one to a line.
  std::string missing() const;

 private:
  /// What `holds` nowhere is missing in the end.
  void count(bool holds, const std::string& name) { counts_[name] += holds ? 1 : 0; }
  void add_model(const Program& program, const Model& model);
  void add_group(const Program& program, const Node& options);
  void add_statement(const Statement& statement, const Rules& rules);

  std::map<std::string, int64_t> counts_;
};

}  // namespace fsdp::test::fuzz
