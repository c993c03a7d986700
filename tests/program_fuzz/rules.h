#pragma once
/// \file
/// Decides which statements may come next in a program: those whose outcome is defined, sharded and unsharded. The
/// rules depend on the program alone.

#include <array>
#include <functional>
#include <set>
#include <vector>

#include "program_fuzz/program.h"

namespace fsdp::test::fuzz {

/// A graph that a forward or autograd::grad has made.
struct GraphState {
  /// A backward may use the graph: no backward has freed it, and nothing that it read has been written since.
  bool is_alive = false;
  uint32_t models = 0;         ///< one bit for each model that the graph read
  std::set<int> parts;         ///< numbers of the statements whose nodes the graph reaches
  bool has_input = false;      ///< the graph's input is a leaf that requires grad, or another graph
  bool is_of_root = false;     ///< all modules of the graph's models took part
  bool has_output = false;     ///< another forward may continue from the graph
  bool has_attention = false;  ///< the graph has attention over ranks, which has no second derivative
  int order = 1;  ///< 1 for a forward's graph; autograd::grad with create_graph makes one of the next order
};

struct ModelState {
  bool exists = false;
  std::vector<int> scopes = {};  ///< nodes of the groups whose scopes are open
  bool no_sync = false, local_rows = false;
  bool has_waiting_gradients = false;  ///< a backward under no_sync has left gradients
  bool may_be_read_again = false;      ///< since the last write of all ranks, a scope closed while a graph existed
  bool may_keep = false;               ///< groups may keep whole copies, which only writes of all ranks make stale
  bool was_written_by_one = false;     ///< one rank has written alone, and others' copies may be stale
  std::set<int> frozen = {};           ///< the frozen nodes among those that kFreeze may change
  std::set<int> steppers = {};         ///< nodes of groups whose optimizers step in backward
  bool was_frozen = false;             ///< a parameter was frozen at some time
  /// True if a backward has ended early. LibTorch keeps its graph until the thread runs another backward.
  bool has_ended_early = false;
};

/// Follows a program, statement by statement. allow() judges a statement, and apply() carries it out; for a statement
/// with a body, open() and close() take the place of apply().
class Rules {
 public:
  explicit Rules(const Program& program) : program_(program) {}

  bool allow(const Statement& statement) const;
  void apply(const Statement& statement);
  void open(const Statement& statement);
  void close(const Statement& statement);
  /// Visits the statements, each in the state before it, until `visit` refuses one. Returns true if it refused none.
  bool follow(const std::vector<Statement>& statements, const std::function<bool(const Statement&)>& visit);

  const GraphState& graph(int slot) const { return item(graphs_, slot); }
  const ModelState& state(int model) const { return item(states_, model); }
  /// Returns true if the scope of a group around the node is open.
  bool is_covered(int model, int node) const;

 private:
  ModelState& state(int model) { return item(states_, model); }
  bool allow_otherwise(const Statement& statement) const;
  bool is_at_rest(int model) const;
  bool trains(int model, int node) const;
  bool any_trains(int model) const;
  void make(int model);
  bool allow_entry(const Statement& statement) const;
  bool allow_forward(const Statement& statement) const;
  bool allow_exchange(const Statement& statement) const;
  bool allow_grad(const Statement& statement) const;
  bool allow_backward(const Statement& statement) const;
  bool allow_throw(const Statement& statement) const;
  void apply_forward(const Statement& statement);
  void apply_exchange(const Statement& statement);
  void apply_grad(const Statement& statement);
  void apply_backward(const Statement& statement);
  void note_read(int model);
  void note_write(int model);
  void note_write_of_all_ranks(int model);
  void free_parts(const std::set<int>& parts);

  const Program& program_;
  std::array<GraphState, kSlots> graphs_;
  std::array<ModelState, kModels> states_;
  int depth_ = 0;
};

/// Returns true if the models are well formed, and every statement is allowed where it stands.
bool is_well_defined(const Program& program);

}  // namespace fsdp::test::fuzz
