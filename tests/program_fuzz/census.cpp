#include "program_fuzz/fuzz.h"

#include <c10/util/StringUtil.h>

#include <array>
#include <iomanip>
#include <sstream>

#include "program_fuzz/rules.h"
#include "program_fuzz/stages.h"
#include "program_fuzz/tables.h"

namespace fsdp::test::fuzz {
namespace {

std::string name_of(Optimizer optimizer) { return c10::str("model: ", info_of(optimizer).name); }
std::string name_of(Kind kind) { return c10::str("statement: ", info_of(kind).name); }
std::string name_of(Cell cell) { return c10::str("module: ", info_of(cell).name); }
std::string name_of(Strategy strategy) { return c10::str("group: ", strategy); }

}  // namespace

Census::Census() {
  for (int i = 0; i < kOptimizers; ++i) count(false, name_of(static_cast<Optimizer>(i)));
  for (int i = 0; i < kKinds; ++i) count(false, name_of(static_cast<Kind>(i)));
  for (int i = 0; i < kCells; ++i) count(false, name_of(static_cast<Cell>(i)));
  for (auto strategy : {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kShardOptimizer, Strategy::kReplicate})
    count(false, name_of(strategy));
  for (int ranks : {2, 3, 4})
    for (const auto* backend : {"shm", "gloo"}) count(false, c10::str(ranks, " ranks over ", backend));
}

void Census::add(const Program& program) {
  count(true, c10::str(program.world_size, " ranks over ", program.backend));
  Rules rules(program);
  rules.follow(program.statements, [&](const Statement& statement) {
    add_statement(program, statement, rules);
    if (statement.kind == Kind::kMake) add_model(program, program.model(statement));
    return true;
  });
}

void Census::add_group(const Program& program, const Node& options) {
  const int shards = shards_of(program, options);
  const bool within = options.reshard == WhenToReshard::kWithin, has_mesh = options.shards != 0;
  count(true, name_of(options.strategy));
  count(within, "group: Reshard::within");
  count(within && options.neighbours > 1 && options.neighbours < shards && program.backend != "shm",
        "group: Reshard::within, neighbours that gather");
  count(has_mesh && shards == program.world_size, "group: over a mesh of 1 x n");
  count(has_mesh && shards == 1, "group: over a mesh of n x 1");
  count(has_mesh && shards == 2 && program.world_size == 4, "group: over a mesh of 2 x 2");
}

void Census::add_model(const Program& program, const Model& model) {
  bool differ = false;
  for (size_t i = 0; i < model.nodes.size(); ++i) {
    if (i > 0 && (model.by_policy || !model.nodes[i].is_group)) continue;
    add_group(program, model.nodes[i]);
    differ |= model.nodes[i].shards != model.nodes[0].shards;
  }
  count(differ, "model: groups over different ranks");
  count(model.is_synced, "model: sync_module_states");
  count(model.by_policy, "model: groups by policy");
  count(model.is_mixed, "model: fp32 of fp64 rows");
  const auto nodes = static_cast<int>(model.nodes.size());
  count(model.in_files == nodes, "model: rows in files");
  count(model.in_files > 0 && model.in_files < nodes, "model: rows of some groups in files");
  count(true, name_of(model.optimizer));
  for (const auto& node : model.nodes) {
    count(true, name_of(node.cell));
    const bool has_size = node.cell == Cell::kWide || node.cell == Cell::kUnused || node.cell == Cell::kTable;
    count(node.is_group, "module: a group");
    count(node.recompute == Recompute::kAll, "module: computed again");
    count(node.recompute == Recompute::kAllButProducts, "module: computed again but for products");
    count(node.is_frozen, "module: frozen");
    count(node.is_hooked && !is_bare(node) && !node.is_frozen, "module: hooks from before fully_shard");
    count(node.is_ignored, "module: ignored");
    count(node.dtype == c10::ScalarType::Float, "module: fp32");
    count(node.dtype == c10::ScalarType::BFloat16, "module: bf16");
    count(has_size && node.size == 0, "module: shape of 0");
    count(has_size && node.size == 4099, "module: 4099 rows");
    count(node.tied_to >= 0, "module: parameters tied");
    count(node.same_as >= 0, "module: stands twice");
  }
}

void Census::add_statement(const Program& program, const Statement& s, const Rules& rules) {
  using enum Kind;
  const auto count_of = [&](Kind kind, bool holds, const char* name) { count(s.kind == kind && holds, name); };
  const auto in_scope = [&](int model) { return !rules.state(model).scopes.empty(); };
  bool graph_lives = false;
  for (int slot = 0; slot < kSlots; ++slot) graph_lives |= rules.graph(slot).is_alive;
  const auto& graph = rules.graph(s.slot);
  count(true, name_of(s.kind));
  count(s.lag.rank >= 0 && s.lag.inside, "a rank held up inside a statement");
  count(s.lag.rank >= 0 && !s.lag.inside, "a rank held up before a statement");

  count_of(kScope, s.node != 0, "scope: of a group inside its model");
  count_of(kScope, in_scope(s.model), "scope: in a scope of its model");
  count_of(kScope, in_scope(1 - s.model), "scope: in a scope of another model");
  count_of(kScope, s.flag, "scope: closed early");

  const bool by_handle = s.entry == Entry::kHandleOf || (s.entry != Entry::kScope && s.node != 0);
  count_of(kForward, s.at != 0 && !rules.is_covered(s.model, s.node),
           "forward: in a scope of a group inside its model");
  count_of(kForward, s.entry == Entry::kCall && s.node == 0, "forward: model(x)");
  count_of(kForward, s.entry == Entry::kForward && s.node == 0, "forward: model.forward(x)");
  count_of(kForward, by_handle, "forward: handle_of");
  count_of(kForward, in_scope(s.model), "forward: in an open scope");
  count_of(kForward, s.node != 0, "forward: of a submodule");
  count_of(kForward, s.other >= 0, "forward: goes on from a graph");
  count_of(kForward, graph_lives, "forward: while another graph lives");
  count_of(kEvaluate, graph_lives, "evaluate: while a graph lives");

  count_of(kGrad, s.flag, "grad: graph retained");
  count_of(kGrad, s.other >= 0, "grad: creates a graph");
  count_of(kGrad, s.node >= 0, "grad: by parameters");
  count_of(kBackward, s.flag, "backward: graph retained");
  count_of(kBackward, s.other >= 0, "backward: of two graphs");
  count_of(kBackward, (graph.models | (s.other < 0 ? 0 : rules.graph(s.other).models)) == 3, "backward: of two models");
  count_of(kBackward, in_scope(0) || in_scope(1), "backward: in a scope");
  count_of(kBackward, rules.state(0).no_sync || rules.state(1).no_sync, "backward: without synchronisation");
  count_of(kBackward, graph.order > 1, "backward: double");
  for (int m = 0; m < kModels; ++m) {
    const auto& its = rules.state(m);
    const bool takes_part = (graph.models & 1U << m) != 0;
    const bool steps = takes_part && !its.no_sync && !its.steppers.empty();
    count_of(kBackward, takes_part && !its.exists, "backward: after its model was dropped");
    count_of(kBackward, steps, "backward: steps in it");
    count_of(kBackward, steps && its.has_waiting_gradients, "backward: steps in it, without synchronisation before");
  }

  constexpr std::array<const char*, kMaps> kMapNames{"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                                     "shift"};
  constexpr std::array<const char*, kMethods> kMethodNames{"head-tail", "ring", "gather", "heads",
                                                           "ring self-attention"};
  const bool is_over_some = ranks_of_axis(program, s) > 1 && ranks_of_axis(program, s) < program.world_size;
  for (int i = 0; i < kMaps; ++i)
    count_of(kMap, s.seed % kMaps == i, c10::str("functional: ", item(kMapNames, i)).c_str());
  for (int i = 0; i < kMethods; ++i)
    count_of(kAttend, s.seed % kMethods == i, c10::str("attention: ", item(kMethodNames, i)).c_str());
  constexpr std::array<const char*, StagesPlan::kSchedules> kScheduleNames{"GPipe", "1F1B", "interleaved 1F1B",
                                                                           "TeraPipe"};
  for (int i = 0; i < StagesPlan::kSchedules; ++i)
    count_of(kPipeline, s.seed % StagesPlan::kSchedules == i, c10::str("pipeline: ", item(kScheduleNames, i)).c_str());
  count_of(kPipeline, is_over_some, "pipeline: stages sharded over another axis");
  count_of(kPipeline, s.kind == kPipeline && stages_plan_of(program, s).frozen > 0, "pipeline: frozen layers");
  count_of(kMap, is_over_some, "functional: over an axis");
  count_of(kAttend, is_over_some, "attention: over an axis");
  count_of(kBackward, graph.has_attention, "backward: through attention over ranks");

  count_of(kScaledStep, s.flag, "GradScaler: an infinite gradient");
  count_of(kWriteRows, s.flag, "write rows: under LocalRows");
  const bool of_all = rules.state(s.model).local_rows;
  count_of(kWriteOneRow, of_all, "write one row: by one rank under a LocalRows of all");
  count_of(kWriteOneRow, !of_all, "write one row: by one rank under a LocalRows of its own");
  count_of(kWriteOneRow, s.flag, "write one row: through a raw pointer");
  count_of(kWriteWhole, s.flag, "write from whole: copied");
  count_of(kWriteWhole, !s.flag, "write from whole: multiplied");
  count_of(kSummon, s.flag, "summon: written back");
  count_of(kThrow, s.rank < 0, "throw: on all ranks");
  count_of(kThrow, s.rank >= 0, "throw: on one rank");
  count_of(kThrow, s.flag, "throw: in backward");
  count_of(kThrow, s.flag && s.node > 0, "throw: in backward inside the model");
}

std::string Census::table() const {
  std::ostringstream text;
  for (const auto& [name, number] : counts_) text << std::setw(9) << number << "  " << name << '\n';
  return text.str();
}

std::string Census::missing() const {
  std::string text;
  for (const auto& [name, number] : counts_)
    if (number == 0) text += "no program did this: " + name + '\n';
  return text;
}

}  // namespace fsdp::test::fuzz
