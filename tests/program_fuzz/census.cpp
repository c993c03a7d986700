#include "program_fuzz/census.h"

#include <c10/util/StringUtil.h>

#include <iomanip>
#include <sstream>

#include "program_fuzz/rules.h"

namespace fsdp::test::fuzz {
namespace {

// Beside kinds of statements and cells.
constexpr const char* kClasses[] = {"2 ranks over shm",
                                    "3 ranks over shm",
                                    "4 ranks over shm",
                                    "2 ranks over gloo",
                                    "3 ranks over gloo",
                                    "4 ranks over gloo",
                                    "model: groups by policy",
                                    "model: sync_module_states",
                                    "model: groups over different ranks",
                                    "model: fp32 of fp64 rows",
                                    "model: rows in files",
                                    "model: rows in files beyond a limit",
                                    "module: a group",
                                    "group: kFullShard",
                                    "group: kShardGradOp",
                                    "group: kShardOptimizer",
                                    "group: kReplicate",
                                    "group: over a mesh of 1 x n",
                                    "group: over a mesh of n x 1",
                                    "group: over a mesh of 2 x 2",
                                    "group: Reshard::within",
                                    "group: Reshard::within, neighbours that gather",
                                    "module: computed again",
                                    "module: computed again but for products",
                                    "module: frozen",
                                    "module: hooks from before fully_shard",
                                    "module: ignored",
                                    "module: fp32",
                                    "module: bf16",
                                    "module: shape of 0",
                                    "module: 4099 rows",
                                    "module: parameters tied",
                                    "module: stands twice",
                                    "scope: of a group inside its model",
                                    "scope: in a scope of its model",
                                    "scope: closed early",
                                    "scope: in a scope of another model",
                                    "forward: in a scope of a group inside its model",
                                    "forward: model(x)",
                                    "forward: model.forward(x)",
                                    "forward: handle_of",
                                    "forward: in an open scope",
                                    "forward: of a submodule",
                                    "forward: goes on from a graph",
                                    "forward: while another graph lives",
                                    "evaluate: while a graph lives",
                                    "grad: graph retained",
                                    "grad: creates a graph",
                                    "grad: by parameters",
                                    "backward: graph retained",
                                    "backward: of two graphs",
                                    "backward: of two models",
                                    "backward: in a scope",
                                    "backward: without synchronisation",
                                    "backward: double",
                                    "backward: after its model was dropped",
                                    "backward: steps in it",
                                    "backward: steps in it, without synchronisation before",
                                    "GradScaler: an infinite gradient",
                                    "write rows: under LocalRows",
                                    "write one row: by one rank under a LocalRows of its own",
                                    "write one row: by one rank under a LocalRows of all",
                                    "write one row: through a raw pointer",
                                    "write from whole: copied",
                                    "write from whole: multiplied",
                                    "summon: written back",
                                    "throw: on one rank",
                                    "throw: on all ranks",
                                    "throw: in backward",
                                    "throw: in backward inside the model",
                                    "a rank held up before a statement",
                                    "a rank held up inside a statement"};

bool has_parameters(const Node& node) { return node.cell != Cell::kSequence && node.cell != Cell::kPause; }

std::string optimizer_name(Optimizer optimizer) { return c10::str("model: ", name_of(optimizer)); }
std::string statement_name(Kind kind) { return c10::str("statement: ", name_of(kind)); }
std::string cell_name(Cell cell) { return c10::str("module: ", name_of(cell)); }

}  // namespace

Census::Census() {
  for (const auto* name : kClasses) counts_[name] = 0;
  for (int optimizer = 0; optimizer < kOptimizers; ++optimizer)
    counts_[optimizer_name(static_cast<Optimizer>(optimizer))] = 0;
  for (int kind = 0; kind < kKinds; ++kind) counts_[statement_name(static_cast<Kind>(kind))] = 0;
  for (int cell = 0; cell < kCells; ++cell) counts_[cell_name(static_cast<Cell>(cell))] = 0;
}

void Census::add(const Program& program) {
  count(c10::str(program.world_size, " ranks over ", program.backend));
  Rules rules(program);
  add_statements(program.statements, rules);
  for (const auto& statement : program.statements)
    if (statement.kind == Kind::kMake) add_model(program, program.models[static_cast<size_t>(statement.model)]);
}

void Census::add_group(const Program& program, const Node& options) {
  const int shards = shards_of(program, options);
  const bool within = options.reshard == WhenToReshard::kWithin;
  count(c10::str("group: ", options.strategy));
  if (within) count("group: Reshard::within");
  if (within && options.neighbours > 1 && options.neighbours < shards && program.backend != "shm")
    count("group: Reshard::within, neighbours that gather");
  if (options.shards == 0) return;
  if (shards == program.world_size) count("group: over a mesh of 1 x n");
  if (shards == 1) count("group: over a mesh of n x 1");
  if (shards == 2 && program.world_size == 4) count("group: over a mesh of 2 x 2");
}

void Census::add_model(const Program& program, const Model& model) {
  bool differ = false;
  for (size_t i = 0; i < model.nodes.size(); ++i) {
    if (i > 0 && (model.by_policy || !model.nodes[i].is_group)) continue;
    add_group(program, model.nodes[i]);
    differ |= model.nodes[i].shards != model.nodes[0].shards;
  }
  if (differ) count("model: groups over different ranks");
  if (model.is_synced) count("model: sync_module_states");
  if (model.by_policy) count("model: groups by policy");
  if (model.is_mixed) count("model: fp32 of fp64 rows");
  if (model.host_limit_bytes >= 0)
    count(model.host_limit_bytes == 0 ? "model: rows in files" : "model: rows in files beyond a limit");
  count(optimizer_name(model.optimizer));
  for (const auto& node : model.nodes) {
    count(cell_name(node.cell));
    const bool has_size = node.cell == Cell::kWide || node.cell == Cell::kUnused || node.cell == Cell::kTable;
    if (node.is_group) count("module: a group");
    if (node.recompute == Recompute::kAll) count("module: computed again");
    if (node.recompute == Recompute::kAllButProducts) count("module: computed again but for products");
    if (node.is_frozen) count("module: frozen");
    if (node.is_hooked && has_parameters(node) && !node.is_frozen) count("module: hooks from before fully_shard");
    if (node.is_ignored) count("module: ignored");
    if (node.dtype == c10::ScalarType::Float) count("module: fp32");
    if (node.dtype == c10::ScalarType::BFloat16) count("module: bf16");
    if (has_size && node.size == 0) count("module: shape of 0");
    if (has_size && node.size == 4099) count("module: 4099 rows");
    if (node.tied_to >= 0) count("module: parameters tied");
    if (node.same_as >= 0) count("module: stands twice");
  }
}

void Census::add_statements(const std::vector<Statement>& statements, Rules& rules) {
  for (const auto& statement : statements) {
    add_statement(statement, rules);
    if (!has_body(statement.kind)) {
      rules.apply(statement);
      continue;
    }
    rules.open(statement);
    add_statements(statement.body, rules);
    rules.close(statement);
  }
}

void Census::add_statement(const Statement& s, const Rules& rules) {
  count(statement_name(s.kind));
  if (s.lag.rank >= 0) count(s.lag.inside ? "a rank held up inside a statement" : "a rank held up before a statement");
  const bool any_scope = rules.is_in_scope(0) || rules.is_in_scope(1);
  bool graph_lives = false;
  for (int slot = 0; slot < kSlots; ++slot) graph_lives |= rules.graph(slot).is_alive;
  const auto count_if = [&](bool holds, const char* name) {
    if (holds) count(name);
  };
  switch (s.kind) {
    case Kind::kScope:
      count_if(s.node != 0, "scope: of a group inside its model");
      count_if(rules.is_in_scope(s.model), "scope: in a scope of its model");
      count_if(s.flag, "scope: closed early");
      count_if(rules.is_in_scope(1 - s.model), "scope: in a scope of another model");
      break;
    case Kind::kForward:
      count_if(s.at != 0 && !rules.is_covered(s.model, s.node), "forward: in a scope of a group inside its model");
      count_if(s.entry == Entry::kCall && s.node == 0, "forward: model(x)");
      count_if(s.entry == Entry::kForward && s.node == 0, "forward: model.forward(x)");
      count_if(s.entry == Entry::kHandleOf || (s.entry != Entry::kScope && s.node != 0), "forward: handle_of");
      count_if(rules.is_in_scope(s.model), "forward: in an open scope");
      count_if(s.node != 0, "forward: of a submodule");
      count_if(s.other >= 0, "forward: goes on from a graph");
      count_if(graph_lives, "forward: while another graph lives");
      break;
    case Kind::kEvaluate:
      count_if(graph_lives, "evaluate: while a graph lives");
      break;
    case Kind::kGrad:
      count_if(s.flag, "grad: graph retained");
      count_if(s.other >= 0, "grad: creates a graph");
      count_if(s.node >= 0, "grad: by parameters");
      break;
    case Kind::kBackward:
      count_if(s.flag, "backward: graph retained");
      count_if(s.other >= 0, "backward: of two graphs");
      count_if((rules.graph(s.slot).models | (s.other < 0 ? 0 : rules.graph(s.other).models)) == 3,
               "backward: of two models");
      count_if(any_scope, "backward: in a scope");
      for (int m = 0; m < kModels; ++m) {
        if ((rules.graph(s.slot).models & 1U << m) == 0) continue;
        if (rules.is_without_sync(m) || !rules.steps_in_backward(m)) continue;
        count("backward: steps in it");
        count_if(rules.has_waiting_gradients(m), "backward: steps in it, without synchronisation before");
      }
      count_if(rules.is_without_sync(0) || rules.is_without_sync(1), "backward: without synchronisation");
      count_if(rules.graph(s.slot).order > 1, "backward: double");
      for (int m = 0; m < kModels; ++m)
        count_if((rules.graph(s.slot).models & 1U << m) != 0 && !rules.exists(m),
                 "backward: after its model was dropped");
      break;
    case Kind::kScaledStep:
      count_if(s.flag, "GradScaler: an infinite gradient");
      break;
    case Kind::kWriteRows:
      count_if(s.flag, "write rows: under LocalRows");
      break;
    case Kind::kWriteOneRow:
      count(rules.is_in_local_rows(s.model) ? "write one row: by one rank under a LocalRows of all"
                                            : "write one row: by one rank under a LocalRows of its own");
      count_if(s.flag, "write one row: through a raw pointer");
      break;
    case Kind::kWriteWhole:
      count(s.flag ? "write from whole: copied" : "write from whole: multiplied");
      break;
    case Kind::kSummon:
      count_if(s.flag, "summon: written back");
      break;
    case Kind::kThrow:
      count(s.rank < 0 ? "throw: on all ranks" : "throw: on one rank");
      count_if(s.flag, "throw: in backward");
      count_if(s.flag && s.node > 0, "throw: in backward inside the model");
      break;
    default:
      break;
  }
}

std::string Census::table() const {
  std::ostringstream text;
  for (const auto& [name, number] : counts_) text << std::setw(9) << number << "  " << name << '\n';
  return text.str();
}

std::vector<std::string> Census::missing() const {
  std::vector<std::string> names;
  for (const auto& [name, number] : counts_)
    if (number == 0) names.push_back(name);
  return names;
}

}  // namespace fsdp::test::fuzz
