#include "program_fuzz/fuzz.h"

#include <algorithm>
#include <optional>
#include <random>

#include "program_fuzz/rules.h"
#include "program_fuzz/tables.h"

namespace fsdp::test::fuzz {
namespace {

// Two ranks send each other half of such a parameter. In fp32, half of it is larger than a slot of shared memory (2
// MiB).
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
    number_statements(program_);
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
    if (!has_parameters(model, 0)) return draw_model();
    for (int i = 1; i <= count; ++i) item(model.nodes, i).is_group &= has_parameters(model, i);
    draw_strategies(model);
    const bool shares = std::any_of(model.nodes.begin(), model.nodes.end(),
                                    [](const Node& node) { return node.same_as >= 0 || node.tied_to >= 0; });
    model.by_policy = !shares && chance(0.3);
    model.is_synced = chance(0.25);
    model.is_mixed = !has_bfloat16_ && chance(0.12);
    if (chance(0.12)) model.in_files = pick(std::vector<int>{1, count + 1});
    model.optimizer = static_cast<Optimizer>(draw(0, kOptimizers - 1));
    for (int i = 0; i <= count; ++i)
      if (!may_recompute(model, i)) item(model.nodes, i).recompute = Recompute::kNothing;
    return model;
  }

  // Gives all groups of half of the models the same strategy.
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
    Node node{.cell = draw_by_weight<Cell>(kCells)};
    std::vector<int> sequences;
    for (size_t i = 0; i < model.nodes.size(); ++i)
      if (model.nodes[i].cell == Cell::kSequence) sequences.push_back(static_cast<int>(i));
    node.parent = pick(sequences);
    node.size = chance(0.04) ? 4099 : pick(std::vector<int64_t>{0, 1, 2, 3, 5, 7, 8, 31, 64});
    if (node.cell == Cell::kTable) node.size = std::max<int64_t>(node.size, 1);
    if (node.cell == Cell::kStacked) node.size = pick(std::vector<int64_t>{1, 2, 3, 5});
    if (node.cell == Cell::kLarge) node.size = kLargeNumel / program_.width;
    if (chance(0.12)) node.dtype = c10::ScalarType::Float;
    if (has_bfloat16_ && chance(0.5)) node.dtype = c10::ScalarType::BFloat16;
    // After some steps, rounding errors in a sum of so many products exceed the tolerance.
    if (node.dtype == c10::ScalarType::BFloat16 && node.size == 4099) node.size = 64;
    node.is_frozen = chance(0.15);
    node.is_hooked = chance(0.2);
    node.is_ignored = node.cell != Cell::kSequence && chance(0.05);
    node.is_group = chance(0.5);
    if (chance(0.15)) node.recompute = chance(0.5) ? Recompute::kAll : Recompute::kAllButProducts;
    if (node.cell != Cell::kSequence && chance(0.15)) share(node, model);
    return node;
  }

  template <class Drawn>
  Drawn draw_by_weight(int count) {
    std::vector<int> weights;
    for (int i = 0; i < count; ++i) weights.push_back(info_of(static_cast<Drawn>(i)).weight);
    return static_cast<Drawn>(std::discrete_distribution<int>(weights.begin(), weights.end())(random_));
  }

  // Makes the node share the parameters or the module of an earlier node.
  void share(Node& node, const Model& model) {
    std::vector<int> sources;
    for (size_t i = 1; i < model.nodes.size(); ++i)
      if (model.nodes[i].cell != Cell::kSequence && model.nodes[i].tied_to < 0 && model.nodes[i].same_as < 0)
        sources.push_back(static_cast<int>(i));
    if (sources.empty()) return;
    const int source = pick(sources), parent = node.parent;
    const bool is_group = node.is_group;
    node = item(model.nodes, source);
    node.parent = parent;
    const bool same = chance(0.4);
    node.is_group = is_group && !same;
    (same ? node.same_as : node.tied_to) = source;
  }

  // Draws up to `count` statements. The statements before each one must allow it.
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

  // Draws a backward that leaves gradients waiting for a reduction, and then a backward whose groups step. If each
  // statement were drawn on its own, the two would hardly ever meet.
  void draw_accumulation(std::vector<Statement>& statements, int model) {
    append(statements, {.kind = Kind::kNoSync, .model = model}, [&](auto& body) { draw_pass(body, model); });
    draw_pass(statements, model);
  }

  // Draws a forward and a backward of the whole model.
  void draw_pass(std::vector<Statement>& statements, int model) {
    const int slot = draw(0, kSlots - 1);
    for (const Statement& statement : {Statement{.kind = Kind::kForward, .model = model, .slot = slot, .flag = true},
                                       Statement{.kind = Kind::kBackward, .slot = slot}})
      append(statements, statement, [](auto&) {});
  }

  std::optional<Statement> draw_statement() {
    for (int trial = 0; trial < 30; ++trial) {
      const auto kind = draw_by_weight<Kind>(kKinds);
      if (std::ranges::find(choice_.without, kind) != choice_.without.end()) continue;
      auto statement = draw_of(kind);
      if (rules_.allow(statement)) return statement;
    }
    return std::nullopt;
  }

  // Returns the nodes that have their own fully_shard call. If `node` is given, returns only that node and those around
  // it.
  static std::vector<int> groups_around(const Model& model, int node = -1) {
    std::vector<int> groups{0};
    for (int i = 1; i < static_cast<int>(model.nodes.size()); ++i)
      if (item(model.nodes, i).is_group && (node < 0 || is_within(model, node, i))) groups.push_back(i);
    return groups;
  }

  // Draws the node of a forward, and the way in which the forward enters its scope.
  void draw_entry(Statement& s) {
    const auto& model = program_.model(s);
    if (chance(0.4)) s.entry = static_cast<Entry>(draw(1, kEntries - 1));
    if (chance(0.3)) s.node = draw(0, static_cast<int>(model.nodes.size()) - 1);
    if (s.entry == Entry::kScope) s.at = pick(groups_around(model, s.node));
  }

  // Returns -1 if there is no such slot.
  int slot_of_another_model(int slot) const {
    for (int other = 0; other < kSlots; ++other)
      if (rules_.graph(other).is_alive && (rules_.graph(other).models & ~rules_.graph(slot).models) != 0) return other;
    return -1;
  }

  Statement draw_of(Kind kind) {
    const auto& info = info_of(kind);
    Statement s{.kind = kind, .model = chance(0.7) ? 0 : 1, .slot = draw(0, kSlots - 1)};
    s.flag = chance(info.flag);
    s.value = info.values[static_cast<size_t>(draw(0, 2))];
    s.rank = draw(-1, program_.world_size - 1);
    s.seed = draw(0, 100);
    s.number = number_;
    if (chance(0.4)) s.lag = {draw(0, program_.world_size - 1), draw(1, 6), chance(0.4)};
    const auto& model = program_.model(s);
    const auto draw_group = [&] { return pick(groups_around(model)); };
    const auto draw_node = [&] { return draw(1, static_cast<int>(model.nodes.size()) - 1); };
    if ((info.needs & kGroup) != 0) s.node = draw_group();
    if ((info.needs & kRows) != 0 || kind == Kind::kScaledStep) s.node = draw_node();
    switch (kind) {
      case Kind::kScope:
        if (chance(0.5)) s.node = 0;
        break;
      case Kind::kEvaluate:
      case Kind::kForward:
        draw_entry(s);
        if (kind == Kind::kForward && chance(0.3)) s.other = draw(0, kSlots - 1);
        break;
      case Kind::kGrad:
        s.node = chance(0.35) ? draw_node() : -1;
        if (chance(0.5)) s.other = draw(0, kSlots - 1);
        break;
      case Kind::kBackward:
        s.other = chance(0.5) ? draw(0, kSlots - 1) : chance(0.5) ? slot_of_another_model(s.slot) : -1;
        break;
      case Kind::kThrow:
        if (s.flag && chance(0.6)) s.node = draw_node();
        break;
      case Kind::kMap:
      case Kind::kAttend:
      case Kind::kPipeline:
        s.other = draw(0, kSlots - 1);
        s.rank = chance(0.5) ? -1 : pick(divisors_of(program_.world_size));
        break;
      case Kind::kForwardPrefetch:
      case Kind::kBackwardPrefetch:
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
  bool has_bfloat16_ = false;  // for the model that is being drawn
  int number_ = 0;
};

}  // namespace

Program generate(uint64_t seed, const Choice& choice) { return Generator(seed, choice).generate(); }

}  // namespace fsdp::test::fuzz
