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

/// What a module computes from h, a tensor of sizes [samples, width].
enum class Cell : uint8_t {
  kSequence,   ///< adds child(h) to h, for one child after the other
  kLinear,     ///< a linear layer and tanh
  kWide,       ///< two layers with `size` values between them; 0 and primes are among the sizes
  kScale,      ///< multiplies by a scalar parameter
  kNorm,       ///< torch::layer_norm
  kTable,      ///< takes rows of a table with `size` rows
  kFunction,   ///< a custom Function is the only reader of the parameter
  kSometimes,  ///< uses a second parameter on some of the ranks only
  kUnused,     ///< has a parameter that nobody reads
  kRunning,    ///< subtracts a running mean, a buffer that each rank keeps for itself, and multiplies by a scale
  kPause,      ///< has no parameters; backward may hold up a rank here
  kLarge,      ///< uses all `size` rows of a table, which are more bytes than one round of a reduction carries
  kAdapter,    ///< adds to a frozen layer two thin layers with `size` values between them (LoRA)
  kStacked,    ///< has `size` matrices in one parameter, so few and so large that ranks split each matrix
};
constexpr int kCells = 14;

/// The value of the option `reshard_after_forward`.
enum class WhenToReshard : uint8_t { kUnset, kAlways, kNever, kWithin };

/// Says whether activation_checkpoint wraps the forward of a module, and what it recomputes.
enum class Recompute : uint8_t { kNothing, kAll, kAllButProducts };

/// A module of a model's tree. A parent comes before its children, and node 0 is the root.
struct Node {
  Cell cell = Cell::kSequence;
  int parent = -1;
  int64_t size = 1;
  c10::ScalarType dtype = c10::ScalarType::Double;
  bool is_frozen = false;
  bool is_ignored = false;  ///< its parameters are in FullyShardOptions::ignored_params
  bool is_hooked = false;   ///< hooks that read sizes are registered on its parameters before fully_shard
  bool is_group = false;    ///< it has its own fully_shard call; the root always has one
  int tied_to = -1;  ///< earlier node of the same cell, size and dtype with which this one shares its parameters, or -1
  int same_as = -1;  ///< earlier node whose module also stands here, or -1
  WhenToReshard reshard = WhenToReshard::kUnset;
  int neighbours = 1;  ///< argument of WhenToReshard::kWithin
  Strategy strategy = Strategy::kFullShard;
  Recompute recompute = Recompute::kNothing;
  int shards = 0;  ///< number of ranks on the axis "shard" of a mesh of all ranks, or 0 without a mesh

  bool operator==(const Node&) const = default;
};

enum class Optimizer : uint8_t { kSgd, kAdamW, kFusedSgd, kFusedAdamW, kFusedAdam, kFusedRmsprop, kFusedAdagrad };
constexpr int kOptimizers = 7;

struct Model {
  std::vector<Node> nodes;
  bool is_synced = false;  ///< sync_module_states is set, and ranks other than 0 begin with other values
  bool by_policy = false;  ///< auto_wrap_policy makes the groups; otherwise calls of fully_shard make them bottom-up
  bool is_mixed = false;   ///< operators compute with parameters in fp32, and gradients are summed in fp64
  int in_files = 0;        ///< number of nodes, counted from node 0, that have a DiskOffloadPolicy
  Optimizer optimizer = Optimizer::kSgd;

  bool operator==(const Model&) const = default;
};

/// The way in which a forward enters the scope of its module.
enum class Entry : uint8_t {
  kScope,     ///< The program opens a ForwardScope and calls the module in it.
  kCall,      ///< The program calls model(x).
  kForward,   ///< The program calls model.forward(x).
  kHandleOf,  ///< The program calls fsdp::handle_of(module)(x).
};
constexpr int kEntries = 4;

/// What a statement does. "flag:" says what it does if Statement::flag is set.
enum class Kind : uint8_t {
  kMake,       ///< Builds and shards `model`, and makes its optimizer.
  kDrop,       ///< Destroys `model` except for its graphs.
  kScope,      ///< Opens a ForwardScope of `node` around `body`. flag: the program calls close().
  kNoSync,     ///< Runs `body` under no_sync().
  kLocalRows,  ///< Runs `body` under LocalRows.
  kForward,  ///< Runs a forward of `node`, entered as `entry` and `at` say, and keeps its graph in `slot`. The input is
             ///< the h of the slot `other`, or a leaf if that is -1. flag: the leaf requires grad.
  kEvaluate,  ///< Runs a forward of `node` under NoGradGuard, entered as `entry` and `at` say.
  kGrad,      ///< Calls autograd::grad on the graph in `slot`, for its input and, unless `node` is -1, that node's
              ///< parameters. `other` is the slot of the new graph, or -1. flag: retain_graph.
  kBackward,  ///< Calls backward on the loss in `slot`, plus the loss in `other` unless that is -1. flag: retain_graph.
  kForget,    ///< Destroys the graph in `slot`.
  kZeroGrad,  ///< Calls zero_grad. flag: set_to_none.
  kStep,      ///< Steps the optimizer.
  kScaledStep,   ///< Multiplies the gradients as for a scaled loss, and calls GradScaler::step, update and zero_grad.
                 ///< flag: the rank that has row `seed` of the first parameter of `node` sets its whole gradient to
                 ///< infinity.
  kWriteRows,    ///< Multiplies the rows of all parameters by `value`. flag: under LocalRows.
  kWriteOneRow,  ///< Multiplies row `seed` of the first parameter of `node` by `value`, on the rank that has it. That
                 ///< rank alone opens LocalRows, unless they are open. flag: writes through a raw pointer.
  kWriteWhole,   ///< Passes operands of the whole sizes to in-place operators. flag: copy_, otherwise mul_.
  kSummon,       ///< Reads parameters in SummonFullParams. flag: multiplies them by `value` and writes them back.
  kUnshard,      ///< Calls unshard() on the group of `node`. flag: also waits.
  kReshard,      ///< Calls reshard() on the group of `node`.
  kKeepAfterForward,  ///< Calls set_reshard_after_forward(!flag).
  kKeepAfterBackward,
  kKeepInBackward,  ///< Calls set_unshard_in_backward(!flag) on the group of `node`.
  kClampReduced,  ///< Sets a hook that clamps the reduced gradients of `node` to `value`, or removes it if flag is not
                  ///< set.
  kStepInBackward,    ///< Drops gradients. flag: gives the group of `node` an optimizer that steps in backward;
                      ///< otherwise takes it away.
  kFreeze,            ///< Sets requires_grad of the parameters of `node` itself to !flag.
  kReduceUnused,      ///< Calls set_reduce_scatter_unused_params(flag).
  kDivideFactor,      ///< Calls set_gradient_divide_factor(value) on the group of `node`.
  kForwardPrefetch,   ///< Calls set_modules_to_forward_prefetch(nodes) on the group of `node`.
  kBackwardPrefetch,  ///< Calls set_modules_to_backward_prefetch(nodes) on the group of `node`.
  kClip,              ///< Clips gradients to the norm `value`.
  kFullTensors,       ///< Records full_tensor of every parameter.
  kSave,              ///< Saves the rows with torch::save, and loads them again.
  kThrow,        ///< Makes `rank` throw (-1: all ranks) and calls reset_iter_state. flag: in backward, at the output of
                 ///< `node`.
  kBarrier,      ///< Calls barrier().
  kCompareRows,  ///< Records the rows and buffers of `model`.
  kCompareGradients,  ///< Records the gradients of `model`.
  kAllReduce,         ///< Reduces a tensor. flag: the maximum, otherwise the sum.
  kAllGather,         ///< Gathers a tensor.
  kBroadcast,         ///< Broadcasts a tensor from `rank`.
  kMean,              ///< Calls mean().
  kMap,  ///< Passes the h of slot `other` through one of kMaps collectives with gradients, as `seed` chooses, and keeps
         ///< the graph in `slot`. Groups of `rank` neighbours take part, or all ranks together if that is -1.
  kAttend,    ///< Does the same with attention in a SequenceParallel of the method that `seed` chooses. flag: causal.
  kByHand,    ///< Computes with rows in one of kHands ways, as users' own optimizers do. `seed` chooses the way.
  kPipeline,  ///< Trains a model of its own as pipeline stages (see stages.h), on `rank` ranks per pipeline or, if that
              ///< is -1, on all. `seed` chooses schedule and batch. flag: some layers are frozen.
};
constexpr int kKinds = 44;
constexpr int kHands = 5, kMaps = 5, kMethods = 5;

/// Holds up one rank until the other ranks are `ahead` statements further, or until a time limit.
struct Lag {
  int rank = -1;  ///< number of the rank; -1 for no rank
  int ahead = 1;
  bool inside = false;  ///< true: in the forward scope or in a kPause's backward; false: before the statement

  bool operator==(const Lag&) const = default;
};

struct Statement {
  Kind kind = Kind::kBarrier;
  int model = 0, node = 0, slot = 0, other = -1, rank = -1;
  bool flag = false;
  Entry entry = Entry::kScope;
  int at = 0;  ///< node of the group whose scope opens with Entry::kScope, unless a scope around it is open
  double value = 0;
  int64_t seed = 0;  ///< seed of the input, and of other choices
  std::vector<int> nodes = {};
  std::vector<Statement> body = {};
  Lag lag = {};
  int number = 0;  ///< number of the statement in the program, in the order of execution

  bool operator==(const Statement&) const = default;
};

constexpr int kModels = 2, kSlots = 4;

/// Returns the list's item at a place, which may be a signed number or an enumerator.
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

/// A member of a struct and its name. Programs are printed and simplified with these.
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

/// Returns true if the node is `ancestor` or lies below it.
inline bool is_within(const Model& model, int node, int ancestor) {
  while (node > ancestor) node = item(model.nodes, node).parent;
  return node == ancestor;
}
/// Returns true if a second forward of the module gives the same values, and LibTorch frees the saved tensors after it.
/// The latter fails for a custom Function that is the last to save (docs/memory.md).
inline bool may_recompute(const Model& model, int node) {
  for (int i = node; i < static_cast<int>(model.nodes.size()); ++i) {
    const Cell cell = item(model.nodes, i).cell;
    if (is_within(model, i, node) && (cell == Cell::kRunning || cell == Cell::kFunction)) return false;
  }
  return true;
}
/// Returns true if the node has no parameters of its own.
inline bool is_bare(const Node& node) { return node.cell == Cell::kSequence || node.cell == Cell::kPause; }
/// Returns true if the node's module, or a module below it, has parameters. Other modules cannot be sharded.
inline bool has_parameters(const Model& model, int node) {
  for (int i = node; i < static_cast<int>(model.nodes.size()); ++i)
    if (!is_bare(item(model.nodes, i)) && is_within(model, i, node)) return true;
  return false;
}
/// Returns true if the node's own parameter number `place` trains.
inline bool has_trained(const Node& node, int place) {
  return !node.is_frozen && (node.cell != Cell::kAdapter || place > 0);
}
/// Returns the options of the fully_shard call that makes the group of a node. With a policy there is only one call.
inline const Node& options_of(const Model& model, int group) { return item(model.nodes, model.by_policy ? 0 : group); }
/// Returns the number of neighbouring ranks that a kMap, kAttend or kPipeline runs over.
inline int ranks_of_axis(const Program& program, const Statement& s) {
  return s.rank < 0 ? program.world_size : s.rank;
}
/// Returns the number of ranks that share the rows. With kReplicate no rank shares them, but sums are taken in the same
/// order.
inline int shards_of(const Program& program, const Node& options) {
  return options.shards == 0 ? program.world_size : options.shards;
}

inline bool has_body(Kind kind) { return kind == Kind::kScope || kind == Kind::kNoSync || kind == Kind::kLocalRows; }
/// Visits all statements, including those in bodies, in the order of execution.
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
