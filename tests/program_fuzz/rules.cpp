#include "program_fuzz/rules.h"

#include <algorithm>

#include "program_fuzz/tables.h"

namespace fsdp::test::fuzz {
namespace {

constexpr int kDeepest = 3;

bool has_node(const Model& model, int node) { return node >= 0 && static_cast<size_t>(node) < model.nodes.size(); }

// Returns true if a program may write the first parameter of the node row by row.
bool has_rows(const Model& model, int number) {
  if (!has_node(model, number)) return false;
  const auto& node = item(model.nodes, number);
  return !is_bare(node) && node.size > 0 && !node.is_ignored;
}

// With a policy, a module becomes a group only if it has elements that no group inside it has taken.
bool is_group_node(const Model& model, int number) {
  if (number == 0) return true;
  return has_node(model, number) && item(model.nodes, number).is_group && (!model.by_policy || has_rows(model, number));
}

// Returns the node whose module or parameters this node shares, or the node itself.
int source_of(const Model& model, int number) {
  const auto& node = item(model.nodes, number);
  return node.same_as >= 0 ? node.same_as : node.tied_to >= 0 ? node.tied_to : number;
}

bool has_replicas(const Program& program, const Model& model) {
  return std::ranges::any_of(model.nodes, [&](const Node& node) {
    return node.strategy == Strategy::kReplicate || shards_of(program, node) < program.world_size;
  });
}

uint32_t bit(int model) { return 1U << model; }

bool is_well_formed(const Program& program, const Node& node) {
  if (node.shards < 0 || (node.shards > 0 && program.world_size % node.shards != 0)) return false;
  if (node.strategy != Strategy::kFullShard)
    return node.reshard == WhenToReshard::kUnset || node.reshard == WhenToReshard::kNever;
  return node.reshard != WhenToReshard::kWithin ||
         (node.neighbours > 0 && shards_of(program, node) % node.neighbours == 0);
}

bool is_well_formed(const Program& program, const Model& model) {
  if (model.nodes.empty() || model.nodes[0].cell != Cell::kSequence) return false;
  if (!std::ranges::all_of(model.nodes, [&](const Node& node) { return is_well_formed(program, node); })) return false;
  if (!has_parameters(model, 0)) return false;
  for (size_t i = 1; i < model.nodes.size(); ++i) {
    const auto& node = model.nodes[i];
    const int number = static_cast<int>(i);
    if (node.parent < 0 || node.parent >= number) return false;
    if (node.is_group && !has_parameters(model, number)) return false;
    if (item(model.nodes, node.parent).cell != Cell::kSequence) return false;
    const bool needs_rows =
        node.cell == Cell::kTable || node.cell == Cell::kLarge || node.cell == Cell::kStacked;
    if (needs_rows && node.size < 1) return false;
    for (int source : {node.tied_to, node.same_as}) {
      if (source < 0) continue;
      if (source >= number || node.cell == Cell::kSequence) return false;
      const auto& other = item(model.nodes, source);
      if (other.tied_to >= 0 || other.same_as >= 0 || other.cell != node.cell || other.size != node.size ||
          other.dtype != node.dtype || other.is_frozen != node.is_frozen || other.is_ignored != node.is_ignored)
        return false;
    }
    if (node.recompute != Recompute::kNothing && !may_recompute(model, number)) return false;
    if (node.same_as >= 0 && (node.is_group || node.tied_to >= 0)) return false;
    if (model.by_policy && (node.same_as >= 0 || node.tied_to >= 0)) return false;
  }
  return true;
}

}  // namespace

bool Rules::allow(const Statement& s) const {
  const auto& model = program_.model(s);
  const auto& its = state(s.model);
  const unsigned needs = info_of(s.kind).needs;
  const auto lacks = [needs](unsigned need, bool holds) { return (needs & need) == need && !holds; };
  return !lacks(kExists, its.exists) && !lacks(kOutside, its.scopes.empty()) &&
         !lacks(kSettled, !its.has_waiting_gradients) && !lacks(kNoRows, !its.local_rows) &&
         !lacks(kAtTop, depth_ == 0) && !lacks(kNests, depth_ < kDeepest) &&
         !lacks(kGroup, is_group_node(model, s.node)) && !lacks(kRows, has_rows(model, s.node)) && allow_otherwise(s);
}

bool Rules::allow_otherwise(const Statement& s) const {
  const auto& model = program_.model(s);
  const auto& its = state(s.model);
  switch (s.kind) {
    case Kind::kMake:
      return !its.exists;
    case Kind::kNoSync:
      return !its.no_sync;
    case Kind::kForward:
      return allow_forward(s);
    case Kind::kEvaluate:
      return allow_entry(s);
    case Kind::kMap:
    case Kind::kAttend:
      return allow_exchange(s);
    case Kind::kGrad:
      return allow_grad(s);
    case Kind::kBackward:
      return allow_backward(s);
    case Kind::kForget:
      return !graph(s.slot).parts.empty();
    case Kind::kScaledStep:
      return !s.flag || has_rows(model, s.node);
    case Kind::kWriteOneRow:  // perhaps no rank has a whole matrix
      if (item(model.nodes, s.node).cell == Cell::kStacked) return false;
      return its.local_rows || (is_at_rest(s.model) && !has_replicas(program_, model));
    case Kind::kSummon:  // low-precision parameters would be written back rounded
      return !(s.flag && model.is_mixed);
    case Kind::kStepInBackward:  // an operator that needs no gradient can read parameters after the group has stepped
      return !model.by_policy && !its.was_frozen;
    case Kind::kFreeze:
      return its.steppers.empty();
    case Kind::kForwardPrefetch:
    case Kind::kBackwardPrefetch:
      return std::ranges::all_of(s.nodes, [&](int node) { return is_group_node(model, node); });
    case Kind::kUnshard:
      return !its.was_written_by_one;
    case Kind::kThrow:
      return allow_throw(s);
    case Kind::kBroadcast:
      return s.rank >= 0 && s.rank < program_.world_size;
    case Kind::kPipeline:
      return s.rank < 0 || (s.rank > 0 && program_.world_size % s.rank == 0);
    default:
      return true;
  }
}

bool Rules::is_covered(int model, int node) const {
  return std::ranges::any_of(state(model).scopes,
                             [&](int open) { return is_within(item(program_.models, model), node, open); });
}

// Returns true if one rank alone may write rows. Such a write waits until no other rank reads, and cannot tell other
// ranks that their whole copies are stale.
bool Rules::is_at_rest(int model) const {
  const auto& its = state(model);
  return !its.may_keep && !its.has_ended_early && !its.may_be_read_again;
}

bool Rules::trains(int model, int node) const {
  const auto& spec = item(program_.models, model);
  const auto& its = item(spec.nodes, node);
  return !is_bare(its) && its.cell != Cell::kUnused && !state(model).frozen.contains(source_of(spec, node));
}

bool Rules::any_trains(int model) const {
  int node = 0;
  return std::ranges::any_of(item(program_.models, model).nodes, [&](const Node&) { return trains(model, node++); });
}

bool Rules::allow_entry(const Statement& s) const {
  const auto& model = program_.model(s);
  if (!state(s.model).exists || !has_node(model, s.node)) return false;
  return is_group_node(model, s.entry == Entry::kScope ? s.at : s.node) &&
         (s.entry != Entry::kScope || is_within(model, s.node, s.at));
}

bool Rules::allow_forward(const Statement& s) const {
  const auto& model = program_.model(s);
  if (!allow_entry(s)) return false;
  // The result has to depend on something that requires grad.
  if (s.node > 0 && item(model.nodes, s.node).cell == Cell::kTable) return false;
  if (s.other < 0) return s.flag || (s.node == 0 && any_trains(s.model));
  return s.other != s.slot && graph(s.other).is_alive && graph(s.other).has_output;
}

bool Rules::allow_exchange(const Statement& s) const {
  const int ranks = ranks_of_axis(program_, s);
  return ranks > 0 && program_.world_size % ranks == 0 && s.other >= 0 && s.other != s.slot &&
         graph(s.other).is_alive && graph(s.other).has_output;
}

bool Rules::allow_grad(const Statement& s) const {
  const auto& graph = this->graph(s.slot);
  if (!graph.is_alive || s.other == s.slot || (s.other >= 0 && graph.has_attention)) return false;
  if (s.node < 0) return graph.has_input;
  const auto& model = program_.model(s);
  // If the program goes on to differentiate the gradients of parameters, it must take them in the scope.
  return state(s.model).exists && graph.has_input && graph.models == bit(s.model) && has_node(model, s.node) &&
         trains(s.model, s.node) && (s.other < 0 || is_covered(s.model, s.node));
}

bool Rules::allow_backward(const Statement& s) const {
  for (int slot : {s.slot, s.other}) {
    if (slot < 0) continue;
    if (!graph(slot).is_alive) return false;
    // A group that a backward does not reach keeps the gradients that wait for a reduction.
    for (int m = 0; m < kModels; ++m)
      if ((graph(slot).models & bit(m)) != 0 && ((!graph(slot).is_of_root && state(m).has_waiting_gradients) ||
                                                 (!state(m).steppers.empty() && !state(m).scopes.empty())))
        return false;
  }
  return s.slot != s.other;
}

// Ignored parameters keep what a rank did in the iteration before another rank threw, so they must not train.
bool Rules::allow_throw(const Statement& s) const {
  const auto& model = program_.model(s);
  if (s.rank >= program_.world_size || std::ranges::any_of(model.nodes, &Node::is_ignored) ||
      !state(s.model).steppers.empty())
    return false;
  if (s.node == 0 || !s.flag || !has_node(model, s.node)) return s.node == 0;
  // The output of the node's module must require grad, and the node's number must identify the module.
  const auto& node = item(model.nodes, s.node);
  return node.cell != Cell::kTable && node.same_as < 0;
}

void Rules::apply(const Statement& s) {
  auto& its = state(s.model);
  switch (s.kind) {
    case Kind::kMake:
      note_write_of_all_ranks(s.model);  // for graphs of an earlier model with this number
      return make(s.model);
    case Kind::kDrop:
      its = {};
      break;
    case Kind::kForward:
      return apply_forward(s);
    case Kind::kEvaluate:
      // In a scope that was opened while gradients were on, a read under no_grad counts as one of a custom Function.
      its.may_be_read_again |= s.entry == Entry::kScope || !its.scopes.empty();
      return note_read(s.model);
    case Kind::kMap:
    case Kind::kAttend:
      return apply_exchange(s);
    case Kind::kGrad:
      return apply_grad(s);
    case Kind::kBackward:
      return apply_backward(s);
    case Kind::kForget:
      item(graphs_, s.slot) = {};
      break;
    case Kind::kWriteOneRow:
      its.was_written_by_one = true;
      return note_write(s.model);
    case Kind::kStep:
    case Kind::kByHand:
    case Kind::kScaledStep:  // both write only parameters that have gradients, perhaps none
      return note_write(s.model);
    case Kind::kWriteRows:
    case Kind::kWriteWhole:
      return note_write_of_all_ranks(s.model);
    case Kind::kSummon:
      if (s.flag) note_write_of_all_ranks(s.model);
      its.may_be_read_again = true;  // its scope closes after the write, and was opened while gradients were on
      break;
    case Kind::kThrow:
      graphs_ = {};
      its.has_waiting_gradients = its.may_be_read_again = false;
      its.has_ended_early = true;
      break;
    case Kind::kKeepAfterBackward:
      its.may_keep |= s.flag;
      break;
    case Kind::kStepInBackward:
      s.flag ? void(its.steppers.insert(s.node)) : void(its.steppers.erase(s.node));
      break;
    case Kind::kFreeze: {
      const int source = source_of(program_.model(s), s.node);
      s.flag ? void(its.frozen.insert(source)) : void(its.frozen.erase(source));
      its.was_frozen = true;
      return note_write(s.model);  // existing graphs expect other gradients
    }
    case Kind::kUnshard:
      its.may_keep = true;
      break;
    default:
      break;
  }
}

void Rules::make(int model) {
  auto& made = state(model) = {.exists = true};
  const auto& nodes = item(program_.models, model).nodes;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].is_frozen) made.frozen.insert(static_cast<int>(i));
    made.was_frozen |= nodes[i].is_frozen || nodes[i].cell == Cell::kAdapter;
    // These strategies keep whole copies from one scope to the next.
    made.may_keep |= nodes[i].strategy == Strategy::kShardGradOp || nodes[i].strategy == Strategy::kShardOptimizer;
  }
}

void Rules::apply_forward(const Statement& s) {
  state(s.model).may_be_read_again = true;
  GraphState made{.is_alive = true,
                  .models = bit(s.model),
                  .parts = {s.number},
                  .has_input = s.flag || s.other >= 0,
                  .is_of_root = s.node == 0,
                  .has_output = true};
  if (s.other >= 0) {
    const auto& source = graph(s.other);
    made.models |= source.models;
    made.parts.insert(source.parts.begin(), source.parts.end());
    made.is_of_root = made.is_of_root && source.is_of_root;
    made.has_attention = source.has_attention;
  }
  item(graphs_, s.slot) = made;
}

void Rules::apply_exchange(const Statement& s) {
  auto made = graph(s.other);
  made.parts.insert(s.number);
  made.has_attention |= s.kind == Kind::kAttend;
  item(graphs_, s.slot) = made;
}

void Rules::apply_grad(const Statement& s) {
  for (auto& state : states_) state.has_ended_early = false;
  GraphState made = graph(s.slot);
  if (!s.flag && s.other < 0) free_parts(made.parts);
  if (s.other < 0) return;
  made.parts.insert(s.number);
  made.has_output = false;
  ++made.order;
  item(graphs_, s.other) = made;
}

void Rules::apply_backward(const Statement& s) {
  for (auto& state : states_) state.has_ended_early = false;
  uint32_t models = 0;
  for (int slot : {s.slot, s.other})
    if (slot >= 0) models |= graph(slot).models;
  for (int m = 0; m < kModels; ++m) {
    if ((models & bit(m)) == 0) continue;
    if (state(m).exists) state(m).has_waiting_gradients = state(m).no_sync;
    if (!state(m).steppers.empty() && !state(m).no_sync) note_write(m);
  }
  if (s.flag) return;
  auto parts = graph(s.slot).parts;
  if (s.other >= 0) parts.insert(graph(s.other).parts.begin(), graph(s.other).parts.end());
  free_parts(parts);
}

// Notes a scope that leaves no graph. If an older graph exists, the library cannot tell that this scope left none.
void Rules::note_read(int model) {
  state(model).may_be_read_again |= std::ranges::any_of(graphs_, [&](const GraphState& graph) {
    return (graph.models & bit(model)) != 0;
  });
}

void Rules::note_write(int model) {
  for (auto& graph : graphs_)
    if ((graph.models & bit(model)) != 0) graph.is_alive = false;
}

// Notes a write to every group. Afterwards no rank reads another rank's rows until the next scope opens, even if
// autograd graphs are still alive.
void Rules::note_write_of_all_ranks(int model) {
  note_write(model);
  state(model).may_be_read_again = state(model).was_written_by_one = false;
}

void Rules::free_parts(const std::set<int>& parts) {
  for (auto& graph : graphs_)
    for (int part : graph.parts)
      if (parts.contains(part)) graph.is_alive = false;
}

void Rules::open(const Statement& s) {
  ++depth_;
  auto& its = state(s.model);
  its.no_sync |= s.kind == Kind::kNoSync;
  if (s.kind == Kind::kScope) {
    its.scopes.push_back(s.node);
    note_read(s.model);
  }
  if (s.kind == Kind::kLocalRows) {
    its.local_rows = true;
    note_write_of_all_ranks(s.model);
  }
}

void Rules::close(const Statement& s) {
  --depth_;
  auto& its = state(s.model);
  if (s.kind == Kind::kScope) its.scopes.pop_back();
  its.no_sync &= s.kind != Kind::kNoSync;
  its.local_rows &= s.kind != Kind::kLocalRows;
}

bool Rules::follow(const std::vector<Statement>& statements, const std::function<bool(const Statement&)>& visit) {
  for (const auto& statement : statements) {
    if (!visit(statement)) return false;
    if (!has_body(statement.kind)) {
      apply(statement);
      continue;
    }
    open(statement);
    if (!follow(statement.body, visit)) return false;
    close(statement);
  }
  return true;
}

bool is_well_defined(const Program& program) {
  const auto is_good = [&](const Model& model) { return is_well_formed(program, model); };
  Rules rules(program);
  return std::ranges::all_of(program.models, is_good) &&
         rules.follow(program.statements, [&](const Statement& statement) { return rules.allow(statement); });
}

}  // namespace fsdp::test::fuzz
