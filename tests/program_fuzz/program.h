#pragma once
/// \file
/// A random program over the public API as data: models, and statements that all ranks execute.

#include <c10/core/ScalarType.h>
#include <fsdp/options.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

namespace fsdp::test::fuzz {

/// What a module of a model computes from h of sizes [samples, width].
enum class Cell : uint8_t {
  kSequence,   ///< h + child(h) for each child
  kLinear,     ///< a layer
  kWide,       ///< two layers with `size` values between them; 0 and primes are among the sizes
  kScale,      ///< multiplied by a scalar
  kNorm,       ///< torch::layer_norm
  kTable,      ///< rows of a table with `size` rows
  kFunction,   ///< a custom Function, the only reader of the parameter
  kSometimes,  ///< a second parameter is used on some of the ranks
  kUnused,     ///< a parameter that nobody reads
  kRunning,    ///< less a running mean, a buffer that each rank keeps for itself, multiplied by a scale
  kPause,      ///< no parameters; a rank may be held up here in backward
  kLarge,      ///< a table whose `size` rows all take part: more bytes than one round of a reduction carries
  kAdapter,    ///< a frozen layer, and beside it two thin ones with `size` values between them (LoRA)
  kStacked,    ///< `size` matrices as one parameter, so few and so large that ranks share the rows of each
};
constexpr int kCells = 14;

/// `reshard_after_forward`.
enum class WhenToReshard : uint8_t { kUnset, kAlways, kNever, kWithin };

/// activation_checkpoint around the forward of a module.
enum class Recompute : uint8_t { kNothing, kAll, kAllButProducts };

/// A module of a model's tree. A parent comes before its children, and node 0 is the root.
struct Node {
  Cell cell = Cell::kSequence;
  int parent = -1;
  int64_t size = 1;
  c10::ScalarType dtype = c10::ScalarType::Double;
  bool is_frozen = false;
  bool is_ignored = false;  ///< FullyShardOptions::ignored_params
  bool is_hooked = false;   ///< its parameters have hooks, registered before fully_shard, that ask for sizes
  bool is_group = false;    ///< has a fully_shard call of its own; the root always has one
  int tied_to = -1;         ///< an earlier node of the same cell, size and dtype whose parameters this one shares
  int same_as = -1;         ///< an earlier node whose module stands here again
  WhenToReshard reshard = WhenToReshard::kUnset;
  int neighbours = 1;  ///< for WhenToReshard::kWithin
  Strategy strategy = Strategy::kFullShard;
  Recompute recompute = Recompute::kNothing;
  int shards = 0;  ///< ranks on the axis "shard" of a mesh of all ranks; 0: there is no mesh

  bool operator==(const Node&) const = default;
};

enum class Optimizer : uint8_t { kSgd, kAdamW, kFusedSgd, kFusedAdamW, kFusedAdam, kFusedRmsprop, kFusedAdagrad };
constexpr int kOptimizers = 7;

struct Model {
  std::vector<Node> nodes;
  bool is_synced = false;  ///< by sync_module_states; ranks other than 0 begin with other values
  bool by_policy = false;  ///< groups are made by auto_wrap_policy, else by calls bottom-up
  bool is_mixed = false;   ///< operators compute with parameters in fp32, gradients are summed in fp64
  int in_files = 0;        ///< so many of the first nodes have a DiskOffloadPolicy
  Optimizer optimizer = Optimizer::kSgd;

  bool operator==(const Model&) const = default;
};

/// How a forward enters the scope of its module.
enum class Entry : uint8_t {
  kScope,     ///< in a ForwardScope
  kCall,      ///< model(x)
  kForward,   ///< model.forward(x)
  kHandleOf,  ///< fsdp::handle_of(module)(x)
};
constexpr int kEntries = 4;

enum class Kind : uint8_t {
  kMake,        ///< model: builds, shards, makes the optimizer
  kDrop,        ///< model: destroys everything except graphs
  kScope,       ///< model, node, body; flag: closed before it goes out of scope
  kNoSync,      ///< model, body
  kLocalRows,   ///< model, body
  kForward,     ///< model, node, entry, at, slot, other: the slot whose h is the input, or -1; flag: the input
                ///< requires grad
  kEvaluate,    ///< model, node, entry, at: a forward under NoGradGuard
  kGrad,        ///< slot, flag: retain_graph, other: the slot of the new graph or -1; node: by its parameters too
  kBackward,    ///< slot, flag: retain_graph, other: a second slot of the sum or -1
  kForget,      ///< slot
  kZeroGrad,    ///< model, flag: set_to_none
  kStep,        ///< model
  kScaledStep,  ///< model: gradients as of a scaled loss, GradScaler::step and update, zero_grad; flag: all rows of the
                ///< first parameter of node that the rank has are infinite if row seed is among them
  kWriteRows,   ///< model, value, flag: under LocalRows
  kWriteOneRow,  ///< model, node, value, seed: which row of its first parameter. The rank that has it writes, under
                 ///< a LocalRows that it alone opens unless one is open; flag: through a raw pointer
  kWriteWhole,   ///< model, value, flag: copied, else multiplied: operands of the whole sizes
  kSummon,       ///< model, value, flag: written, and written back
  kUnshard,      ///< model, node, flag: waits
  kReshard,      ///< model, node
  kKeepAfterForward,  ///< model, flag; set_reshard_after_forward(!flag)
  kKeepAfterBackward,
  kKeepInBackward,   ///< model, node, flag; set_unshard_in_backward(!flag)
  kClampReduced,     ///< model, node, value, flag: a hook of reduced gradients, or none
  kStepInBackward,   ///< model, node, flag: drops gradients; the group has an optimizer that steps in backward, or none
  kFreeze,           ///< model, node, flag: its own parameters, or they train
  kReduceUnused,     ///< model, flag
  kDivideFactor,     ///< model, node, value
  kForwardPrefetch,  ///< model, node, nodes
  kBackwardPrefetch,  ///< model, node, nodes
  kClip,              ///< model, value
  kFullTensors,       ///< model
  kSave,              ///< model: and load what was saved
  kThrow,             ///< model, rank (-1: all), flag: in backward, at the output of node; then reset_iter_state
  kBarrier,           ///<
  kCompareRows,       ///< model
  kCompareGradients,  ///< model
  kAllReduce,         ///< flag: the maximum, else the sum
  kAllGather,         ///<
  kBroadcast,         ///< rank: from which
  kMean,              ///<
  kMap,     ///< slot, other: the slot whose h goes through a collective that autograd knows; rank: how many neighbours
            ///< take part, or -1 for all ranks; seed: which of kMaps
  kAttend,  ///< the same by attention in a SequenceParallel; seed: which of kMethods, flag: causal
  kByHand,  ///< model, value, seed: the program computes with rows by hand, in one of kHands ways
  kPipeline,  ///< a model of its own trains as stages, see stages.h; rank: how many ranks have a stage each, or -1
              ///< for all ranks; seed: which schedule and batch, flag: some layers are frozen
};
constexpr int kKinds = 44;
constexpr int kHands = 5, kMaps = 5, kMethods = 5;

/// One rank is held up until the others are some statements ahead or wait for it.
struct Lag {
  int rank = -1;  ///< -1: nobody
  int ahead = 1;
  bool inside = false;  ///< after a forward's scope has opened, or in a kPause of a backward; else before

  bool operator==(const Lag&) const = default;
};

struct Statement {
  Kind kind = Kind::kBarrier;
  int model = 0, node = 0, slot = 0, other = -1, rank = -1;
  bool flag = false;
  Entry entry = Entry::kScope;
  int at = 0;  ///< for Entry::kScope: the node of the group whose scope opens, unless one around it is open
  double value = 0;
  int64_t seed = 0;  ///< for the input
  std::vector<int> nodes = {};
  std::vector<Statement> body = {};
  Lag lag = {};
  int number = 0;  ///< place in the program, in the order of execution

  bool operator==(const Statement&) const = default;
};

constexpr int kModels = 2, kSlots = 4;

/// The list's item at a place, which may be a signed number or an enumerator.
template <class List, class Place>
auto& item(List& list, Place place) {
  return list[static_cast<size_t>(place)];
}

struct Program {
  int world_size = 2;
  std::string backend = "shm";
  int64_t width = 3, samples = 2;
  std::vector<Model> models = std::vector<Model>(kModels);
  std::vector<Statement> statements = {};

  const Model& model(const Statement& s) const { return item(models, s.model); }
  bool operator==(const Program&) const = default;
};

/// A member of a struct and its name, for printing and simplifying programs.
template <class Of, class Type>
struct Field {
  constexpr Field(const char* its_name, Type Of::* its_member) : name(its_name), member(its_member) {}
  const char* name;
  Type Of::* member;
};

// The fields are in the order of their declarations.
inline constexpr std::tuple kFieldsOfNode{
    Field("cell", &Node::cell),           Field("parent", &Node::parent),       Field("size", &Node::size),
    Field("dtype", &Node::dtype),         Field("is_frozen", &Node::is_frozen), Field("is_ignored", &Node::is_ignored),
    Field("is_hooked", &Node::is_hooked), Field("is_group", &Node::is_group),   Field("tied_to", &Node::tied_to),
    Field("same_as", &Node::same_as),     Field("reshard", &Node::reshard),     Field("neighbours", &Node::neighbours),
    Field("strategy", &Node::strategy),   Field("recompute", &Node::recompute), Field("shards", &Node::shards)};
inline constexpr std::tuple kFieldsOfModel{
    Field("nodes", &Model::nodes),       Field("is_synced", &Model::is_synced), Field("by_policy", &Model::by_policy),
    Field("is_mixed", &Model::is_mixed), Field("in_files", &Model::in_files),   Field("optimizer", &Model::optimizer)};
inline constexpr std::tuple kFieldsOfLag{Field("rank", &Lag::rank), Field("ahead", &Lag::ahead),
                                         Field("inside", &Lag::inside)};
inline constexpr std::tuple kFieldsOfStatement{
    Field("kind", &Statement::kind),   Field("model", &Statement::model), Field("node", &Statement::node),
    Field("slot", &Statement::slot),   Field("other", &Statement::other), Field("rank", &Statement::rank),
    Field("flag", &Statement::flag),   Field("entry", &Statement::entry), Field("at", &Statement::at),
    Field("value", &Statement::value), Field("seed", &Statement::seed),   Field("nodes", &Statement::nodes),
    Field("body", &Statement::body),   Field("lag", &Statement::lag)};
inline constexpr std::tuple kFieldsOfProgram{
    Field("world_size", &Program::world_size), Field("backend", &Program::backend),
    Field("width", &Program::width),           Field("samples", &Program::samples),
    Field("models", &Program::models),         Field("statements", &Program::statements)};

/// Whether the node is `ancestor` or stands below it.
inline bool is_within(const Model& model, int node, int ancestor) {
  while (node > ancestor) node = item(model.nodes, node).parent;
  return node == ancestor;
}
/// Whether the module computes the same when its forward runs again, and LibTorch frees what it would keep when that
/// run ends. The latter does not hold for a custom Function that saves last (docs/memory.md).
inline bool may_recompute(const Model& model, int node) {
  for (int i = node; i < static_cast<int>(model.nodes.size()); ++i) {
    const Cell cell = item(model.nodes, i).cell;
    if (is_within(model, i, node) && (cell == Cell::kRunning || cell == Cell::kFunction)) return false;
  }
  return true;
}
/// Whether the node has no parameters of its own.
inline bool is_bare(const Node& node) { return node.cell == Cell::kSequence || node.cell == Cell::kPause; }
/// Whether the node's module has parameters, of its own or below it: only such a module can be sharded.
inline bool has_parameters(const Model& model, int node) {
  for (int i = node; i < static_cast<int>(model.nodes.size()); ++i)
    if (!is_bare(item(model.nodes, i)) && is_within(model, i, node)) return true;
  return false;
}
/// Whether the node's own parameter at this place trains.
inline bool has_trained(const Node& node, int place) {
  return !node.is_frozen && (node.cell != Cell::kAdapter || place > 0);
}
/// The options of the fully_shard call of a group's node. With a policy there is only one call.
inline const Node& options_of(const Model& model, int group) { return item(model.nodes, model.by_policy ? 0 : group); }
/// How many neighbours a kMap, kAttend or kPipeline is over.
inline int ranks_of_axis(const Program& program, const Statement& s) {
  return s.rank < 0 ? program.world_size : s.rank;
}
/// How many ranks share the rows, or would: kReplicate sums in the order of the other strategies.
inline int shards_of(const Program& program, const Node& options) {
  return options.shards == 0 ? program.world_size : options.shards;
}

inline bool has_body(Kind kind) { return kind == Kind::kScope || kind == Kind::kNoSync || kind == Kind::kLocalRows; }
/// Visits statements in the order of execution, including bodies.
template <class Statements, class Visit>
void for_each_statement(Statements& statements, const Visit& visit) {
  for (auto& statement : statements) {
    visit(statement);
    for_each_statement(statement.body, visit);
  }
}
inline std::vector<const Statement*> in_order(const Program& program) {
  std::vector<const Statement*> order;
  for_each_statement(program.statements, [&](const Statement& statement) { order.push_back(&statement); });
  return order;
}
inline void number_statements(Program& program) {
  int next = 0;
  for_each_statement(program.statements, [&](Statement& statement) { statement.number = next++; });
}

}  // namespace fsdp::test::fuzz
