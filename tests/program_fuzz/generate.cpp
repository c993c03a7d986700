#include "program_fuzz/generate.h"

#include <algorithm>
#include <array>
#include <optional>
#include <random>

#include "program_fuzz/rules.h"

namespace fsdp::test::fuzz {
namespace {

// How often a kind is tried, by Kind; what is not allowed where it would stand is drawn again.
constexpr std::array<int, kKinds> kWeights{
    6,   // make
    3,   // drop
    8,   // scope
    5,   // no_sync
    6,   // LocalRows
    40,  // forward
    12,  // evaluate
    26,  // grad
    42,  // backward
    2,   // forget
    6,   // zero_grad
    14,  // step
    6,   // GradScaler
    12,  // write rows
    14,  // write one row
    6,   // write whole
    4,   // summon
    4,   // unshard
    3,   // reshard
    2,   // keep after forward
    3,   // keep after backward
    2,   // keep in backward
    2,   // clamp reduced
    8,   // step in backward
    3,   // freeze
    2,   // reduce unused
    2,   // divide factor
    2,   // forward prefetch
    2,   // backward prefetch
    4,   // clip
    3,   // full tensors
    2,   // save
    3,   // throw
    1,   // barrier
    5,   // compare rows
    6,   // compare gradients
    2,   // all_reduce
    2,   // all_gather
    2,   // broadcast
    2,   // mean
};

// As fp32 half of it, what each of two ranks sends the other, is more than the 2 MiB of a slot of shared memory.
constexpr int64_t kLargeNumel = 70'001 * 17;

class Generator {
 public:
  Generator(uint64_t seed, const Choice& choice) : random_(seed), choice_(choice), rules_(program_) {}

  Program generate() {
    program_.world_size = pick(choice_.world_sizes);
    program_.backend = pick(choice_.backends);
    program_.width = pick(std::vector<int64_t>{1, 2, 3, 4, 5, 7, 8, 13, 16, 17});
    program_.samples = draw(1, 3);
    for (auto& model : program_.models) model = draw_model();
    const int models = chance(0.4) ? kModels : 1;
    for (int model = 0; model < models; ++model) {
      const Statement make{.kind = Kind::kMake, .model = model, .number = number_++};
      rules_.apply(make);
      program_.statements.push_back(make);
    }
    draw_list(program_.statements, draw(4, 22));
    program_.number_statements();
    return program_;
  }

 private:
  int draw(int from, int to) { return std::uniform_int_distribution<int>(from, to)(random_); }
  bool chance(double probability) { return std::bernoulli_distribution(probability)(random_); }
  template <class T>
  T pick(const std::vector<T>& from) {
    return from[static_cast<size_t>(draw(0, static_cast<int>(from.size()) - 1))];
  }

  Model draw_model() {
    Model model;
    model.nodes.push_back({});
    const int count = draw(1, 6);
    has_bfloat16_ = chance(0.12);
    for (int i = 1; i <= count; ++i) model.nodes.push_back(draw_node(model));
    draw_strategies(model);
    const bool shares = std::any_of(model.nodes.begin(), model.nodes.end(),
                                    [](const Node& node) { return node.same_as >= 0 || node.tied_to >= 0; });
    model.by_policy = !shares && chance(0.3);
    model.is_synced = chance(0.25);
    model.is_mixed = !has_bfloat16_ && chance(0.12);
    if (chance(0.12)) model.host_limit_bytes = pick(std::vector<int64_t>{0, 2000});
    model.optimizer = static_cast<Optimizer>(draw(0, kOptimizers - 1));
    for (int i = 0; i <= count; ++i)
      if (!may_recompute(model, i)) model.nodes[static_cast<size_t>(i)].recompute = Recompute::kNothing;
    return model;
  }

  // Half of the models have one for all of their groups.
  void draw_strategies(Model& model) {
    const bool alike = chance(0.5);
    for (auto& node : model.nodes) {
      node.reshard = pick(
          std::vector{WhenToReshard::kUnset, WhenToReshard::kUnset, WhenToReshard::kAlways, WhenToReshard::kNever});
      if (!alike || &node == &model.nodes[0]) {
        draw_placement(node);
      } else {
        node.strategy = model.nodes[0].strategy;
        node.shards = model.nodes[0].shards;
      }
      if (node.strategy != Strategy::kFullShard) {
        node.reshard = chance(0.5) ? WhenToReshard::kUnset : WhenToReshard::kNever;
      } else if (chance(0.35)) {
        node.reshard = WhenToReshard::kWithin;
        node.neighbours = pick(divisors_of(shards_of(program_, node)));
      }
    }
  }

  void draw_placement(Node& node) {
    node.strategy = pick(std::vector{Strategy::kFullShard, Strategy::kFullShard, Strategy::kFullShard,
                                     Strategy::kShardGradOp, Strategy::kShardOptimizer, Strategy::kReplicate});
    if (chance(0.4)) node.shards = pick(divisors_of(program_.world_size));
  }

  static std::vector<int> divisors_of(int number) {
    std::vector<int> divisors;
    for (int i = 1; i <= number; ++i)
      if (number % i == 0) divisors.push_back(i);
    return divisors;
  }

  Node draw_node(const Model& model) {
    Node node{.cell = chance(0.025) ? Cell::kLarge : draw_cell()};
    std::vector<int> sequences;
    for (size_t i = 0; i < model.nodes.size(); ++i)
      if (model.nodes[i].cell == Cell::kSequence) sequences.push_back(static_cast<int>(i));
    node.parent = pick(sequences);
    node.size = chance(0.04) ? 4099 : pick(std::vector<int64_t>{0, 1, 2, 3, 5, 7, 8, 31, 64});
    if (node.cell == Cell::kTable) node.size = std::max<int64_t>(node.size, 1);
    if (node.cell == Cell::kLarge) node.size = kLargeNumel / program_.width;
    if (chance(0.12)) node.dtype = c10::ScalarType::Float;
    if (has_bfloat16_ && chance(0.5)) node.dtype = c10::ScalarType::BFloat16;
    node.is_frozen = chance(0.15);
    node.is_hooked = chance(0.2);
    node.is_ignored = node.cell != Cell::kSequence && chance(0.05);
    node.is_group = chance(0.5);
    if (chance(0.15)) node.recompute = chance(0.5) ? Recompute::kAll : Recompute::kAllButProducts;
    if (node.cell != Cell::kSequence && chance(0.15)) share(node, model);
    return node;
  }

  Cell draw_cell() {
    return pick(std::vector{Cell::kLinear, Cell::kLinear, Cell::kLinear, Cell::kWide, Cell::kWide, Cell::kSequence,
                            Cell::kSequence, Cell::kScale, Cell::kNorm, Cell::kTable, Cell::kFunction, Cell::kAdapter,
                            Cell::kSometimes, Cell::kUnused, Cell::kRunning, Cell::kPause, Cell::kPause});
  }

  // With an earlier node.
  void share(Node& node, const Model& model) {
    std::vector<int> sources;
    for (size_t i = 1; i < model.nodes.size(); ++i)
      if (model.nodes[i].cell != Cell::kSequence && model.nodes[i].tied_to < 0 && model.nodes[i].same_as < 0)
        sources.push_back(static_cast<int>(i));
    if (sources.empty()) return;
    const int source = pick(sources), parent = node.parent;
    const bool is_group = node.is_group;
    node = model.nodes[static_cast<size_t>(source)];
    node.parent = parent;
    const bool same = chance(0.4);
    node.is_group = is_group && !same;
    (same ? node.same_as : node.tied_to) = source;
  }

  // Up to `count` statements that are allowed one after another.
  void draw_list(std::vector<Statement>& statements, int count) {
    for (int i = 0; i < count; ++i) {
      auto statement = draw_statement();
      if (!statement) continue;
      const bool begins_steps = statement->kind == Kind::kStepInBackward && statement->flag;
      const int model = statement->model;
      append(statements, std::move(*statement), [this](auto& body) { draw_list(body, draw(1, 5)); });
      if (begins_steps && chance(0.7)) draw_accumulation(statements, model);
    }
  }

  template <class DrawBody>
  void append(std::vector<Statement>& statements, Statement statement, DrawBody draw_body) {
    statement.number = number_++;
    if (has_body(statement.kind)) {
      rules_.open(statement);
      draw_body(statement.body);
      rules_.close(statement);
    } else {
      rules_.apply(statement);
    }
    statements.push_back(std::move(statement));
  }

  // A backward that leaves gradients waiting, then one whose groups step: hardly ever drawn one by one.
  void draw_accumulation(std::vector<Statement>& statements, int model) {
    append(statements, {.kind = Kind::kNoSync, .model = model}, [&](auto& body) { draw_pass(body, model); });
    draw_pass(statements, model);
  }

  // Of the whole model.
  void draw_pass(std::vector<Statement>& statements, int model) {
    const int slot = draw(0, kSlots - 1);
    for (const Statement& statement : {Statement{.kind = Kind::kForward, .model = model, .slot = slot, .flag = true},
                                       Statement{.kind = Kind::kBackward, .slot = slot}})
      append(statements, statement, [](auto&) {});
  }

  std::optional<Statement> draw_statement() {
    for (int trial = 0; trial < 30; ++trial) {
      const auto kind = static_cast<Kind>(std::discrete_distribution<int>(kWeights.begin(), kWeights.end())(random_));
      if (std::find(choice_.without.begin(), choice_.without.end(), kind) != choice_.without.end()) continue;
      auto statement = draw_of(kind);
      if (rules_.allow(statement)) return statement;
    }
    return std::nullopt;
  }

  // Nodes with a call of their own; with `node`, of those at and above it.
  static std::vector<int> groups_around(const Model& model, int node = -1) {
    std::vector<int> groups{0};
    for (int i = 1; i < static_cast<int>(model.nodes.size()); ++i)
      if (model.nodes[static_cast<size_t>(i)].is_group && (node < 0 || is_within(model, node, i))) groups.push_back(i);
    return groups;
  }

  // The node of a forward, and how it comes into its scope.
  void draw_entry(Statement& s) {
    const auto& model = program_.models[static_cast<size_t>(s.model)];
    if (chance(0.4)) s.entry = static_cast<Entry>(draw(1, kEntries - 1));
    if (chance(0.3)) s.node = draw(0, static_cast<int>(model.nodes.size()) - 1);
    if (s.entry == Entry::kScope) s.at = pick(groups_around(model, s.node));
  }

  // -1: none.
  int slot_of_another_model(int slot) const {
    for (int other = 0; other < kSlots; ++other)
      if (rules_.graph(other).is_alive && (rules_.graph(other).models & ~rules_.graph(slot).models) != 0) return other;
    return -1;
  }

  Statement draw_of(Kind kind) {
    Statement s{.kind = kind, .model = chance(0.7) ? 0 : 1, .slot = draw(0, kSlots - 1), .flag = chance(0.5)};
    s.seed = draw(0, 5);
    s.number = number_;
    if (chance(0.4)) s.lag = {draw(0, program_.world_size - 1), draw(1, 6), chance(0.4)};
    const auto& model = program_.models[static_cast<size_t>(s.model)];
    const auto draw_group = [&] { return pick(groups_around(model)); };
    switch (kind) {
      case Kind::kScope:
        if (chance(0.3)) s.node = draw_group();
        break;
      case Kind::kEvaluate:
        draw_entry(s);
        break;
      case Kind::kForward:
        draw_entry(s);
        if (chance(0.3)) s.other = draw(0, kSlots - 1);
        s.flag = chance(0.7);
        break;
      case Kind::kGrad:
        s.node = chance(0.35) ? draw(1, static_cast<int>(model.nodes.size()) - 1) : -1;
        if (chance(0.5)) s.other = draw(0, kSlots - 1);
        break;
      case Kind::kBackward:
        s.flag = chance(0.3);
        if (chance(0.5))
          s.other = draw(0, kSlots - 1);
        else if (chance(0.5))
          s.other = slot_of_another_model(s.slot);
        break;
      case Kind::kWriteOneRow:
        s.node = draw(1, static_cast<int>(model.nodes.size()) - 1);
        s.seed = draw(0, 100);
        s.value = pick(std::vector{0.5, 0.9, -1.0});
        break;
      case Kind::kScaledStep:
        s.node = draw(1, static_cast<int>(model.nodes.size()) - 1);
        s.seed = draw(0, 100);
        break;
      case Kind::kWriteRows:
      case Kind::kWriteWhole:
      case Kind::kSummon:
        s.value = pick(std::vector{0.5, 0.9, -1.0});
        break;
      case Kind::kDivideFactor:
        s.value = pick(std::vector{1.0, 2.0, 3.0});
        s.node = draw_group();
        break;
      case Kind::kClampReduced:
        s.value = pick(std::vector{1e-4, 0.01});
        s.node = draw_group();
        s.flag = chance(0.7);
        break;
      case Kind::kStepInBackward:
        s.node = draw_group();
        s.flag = chance(0.8);
        break;
      case Kind::kFreeze:
        s.node = draw(1, static_cast<int>(model.nodes.size()) - 1);
        break;
      case Kind::kClip:
        s.value = pick(std::vector{1e-3, 0.1, 100.0});
        break;
      case Kind::kBroadcast:
        s.rank = draw(0, program_.world_size - 1);
        break;
      case Kind::kThrow:
        s.rank = draw(-1, program_.world_size - 1);
        if (s.flag && chance(0.6)) s.node = draw(1, static_cast<int>(model.nodes.size()) - 1);
        break;
      case Kind::kUnshard:
      case Kind::kReshard:
      case Kind::kKeepInBackward:
        s.node = draw_group();
        break;
      case Kind::kForwardPrefetch:
      case Kind::kBackwardPrefetch:
        s.node = draw_group();
        for (int i = draw(0, 3); i > 0; --i) s.nodes.push_back(draw_group());
        break;
      default:
        break;
    }
    return s;
  }

  std::mt19937_64 random_;
  const Choice& choice_;
  Program program_;
  Rules rules_;
  bool has_bfloat16_ = false;  // the model that is drawn
  int number_ = 0;
};

}  // namespace

Program generate(uint64_t seed, const Choice& choice) { return Generator(seed, choice).generate(); }

}  // namespace fsdp::test::fuzz
