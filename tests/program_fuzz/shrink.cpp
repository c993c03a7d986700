#include "program_fuzz/shrink.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include "program_fuzz/rules.h"

namespace fsdp::test::fuzz {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::minutes(4);
// In one crew: a race may need a few.
constexpr size_t kRepeats = 4;
constexpr int kLonger = 3;  // ranks are held up

int count_statements(const std::vector<Statement>& statements) {
  int count = 0;
  for (const auto& statement : statements) count += 1 + count_statements(statement.body);
  return count;
}

// Leaves out the statements with numbers in [first, last); the bodies of others stay. With `hoist` bodies take the
// place of what is left out.
void leave_out(std::vector<Statement>& statements, int first, int last, bool hoist) {
  std::vector<Statement> kept;
  for (auto& statement : statements) {
    leave_out(statement.body, first, last, hoist);
    if (statement.number < first || statement.number >= last)
      kept.push_back(std::move(statement));
    else if (hoist)
      std::move(statement.body.begin(), statement.body.end(), std::back_inserter(kept));
  }
  statements = std::move(kept);
}

void for_each_statement(std::vector<Statement>& statements, const std::function<void(Statement&)>& change) {
  for (auto& statement : statements) {
    change(statement);
    for_each_statement(statement.body, change);
  }
}

class Simplifier {
 public:
  explicit Simplifier(const Program& program) : program_(program) { program_.number_statements(); }

  std::vector<Program> all() {
    if (program_.world_size > 2)
      add([](Program& p) {
        for_each_statement(p.statements, [](Statement& s) {
          if (s.lag.rank >= 2) s.lag.rank = 1;
          if (s.rank >= 2) s.rank = 1;
        });
        p.world_size = 2;
        for (auto& model : p.models)
          for (auto& node : model.nodes) {
            if (node.shards > 1) node.shards = 2;
            node.neighbours = std::min(node.neighbours, 2);
          }
      });
    leave_out_statements();
    simplify_statements();
    leave_out_nodes();
    simplify_models();
    return std::move(programs_);
  }

 private:
  void add(const std::function<void(Program&)>& change) {
    Program simpler = program_;
    change(simpler);
    simpler.number_statements();
    if (is_well_defined(simpler)) programs_.push_back(std::move(simpler));
  }

  void leave_out_statements() {
    const int count = count_statements(program_.statements);
    for (int length = std::max(1, count / 2);; length /= 2) {
      for (int first = 0; first < count; first += length)
        for (bool hoist : {false, true})
          add([&](Program& p) { leave_out(p.statements, first, first + length, hoist); });
      if (length == 1) break;
    }
  }

  void change_statement(int number, const std::function<void(Statement&)>& change) {
    add([&](Program& p) {
      for_each_statement(p.statements, [&](Statement& s) {
        if (s.number == number) change(s);
      });
    });
  }

  void simplify_statements() {
    for (const auto* s : in_order(program_)) {
      const auto change = [&](bool may, const std::function<void(Statement&)>& how) {
        if (may) change_statement(s->number, how);
      };
      const bool is_forward = s->kind == Kind::kForward || s->kind == Kind::kEvaluate;
      change(s->lag.rank >= 0, [](Statement& t) { t.lag = {}; });
      change(s->lag.rank >= 0 && s->lag.inside, [](Statement& t) { t.lag.inside = false; });
      change(s->flag && s->kind != Kind::kForward, [](Statement& t) { t.flag = false; });
      change(s->other >= 0, [](Statement& t) { t.other = -1; });
      change(s->kind == Kind::kGrad && s->node >= 0, [](Statement& t) { t.node = -1; });
      change(s->at > 0, [](Statement& t) { t.at = 0; });
      change(s->entry != Entry::kScope, [](Statement& t) { t.entry = Entry::kScope; });
      change(s->node > 0 && (is_forward || s->kind == Kind::kScope || s->kind == Kind::kThrow),
             [](Statement& t) { t.node = t.at = 0; });
      change(!s->nodes.empty(), [](Statement& t) { t.nodes.pop_back(); });
      change(s->seed != 0, [](Statement& t) { t.seed = 0; });
    }
  }

  void leave_out_nodes() {
    for (int m = 0; m < kModels; ++m)
      for (int node = static_cast<int>(program_.models[static_cast<size_t>(m)].nodes.size()) - 1; node > 0; --node)
        add([&](Program& p) { leave_out_node(p, m, node); });
  }

  // With all below it.
  static void leave_out_node(Program& p, int m, int node) {
    auto& nodes = p.models[static_cast<size_t>(m)].nodes;
    std::vector<int> places(nodes.size(), -1);
    std::vector<Node> kept;
    for (size_t i = 0; i < nodes.size(); ++i) {
      auto one = nodes[i];
      if (static_cast<int>(i) == node || (one.parent >= 0 && places[static_cast<size_t>(one.parent)] < 0)) continue;
      for (int* source : {&one.parent, &one.tied_to, &one.same_as})
        if (*source >= 0) *source = places[static_cast<size_t>(*source)];
      places[i] = static_cast<int>(kept.size());
      kept.push_back(one);
    }
    nodes = std::move(kept);
    const auto move = [&](int& place) {
      if (place > 0) place = places[static_cast<size_t>(place)] < 0 ? 0 : places[static_cast<size_t>(place)];
    };
    for_each_statement(p.statements, [&](Statement& s) {
      if (s.model != m) return;
      move(s.node);
      move(s.at);
      for (int& other : s.nodes) move(other);
    });
  }

  void simplify_models() {
    if (program_.width > 2) add([](Program& p) { p.width = 2; });
    if (program_.samples > 1) add([](Program& p) { p.samples = 1; });
    for (size_t m = 0; m < kModels; ++m) {
      const auto change_model = [&](auto member, auto value) {
        if (program_.models[m].*member != value) add([&](Program& p) { p.models[m].*member = value; });
      };
      change_model(&Model::is_synced, false);
      change_model(&Model::by_policy, false);
      change_model(&Model::is_mixed, false);
      change_model(&Model::host_limit_bytes, int64_t{-1});
      change_model(&Model::optimizer, Optimizer::kSgd);
      for (size_t i = 0; i < program_.models[m].nodes.size(); ++i) {
        const auto& node = program_.models[m].nodes[i];
        const auto change = [&](auto member, auto value) {
          if (node.*member != value) add([&](Program& p) { p.models[m].nodes[i].*member = value; });
        };
        if (i > 0 && node.cell != Cell::kSequence && node.cell != Cell::kScale) change(&Node::cell, Cell::kLinear);
        change(&Node::tied_to, -1);
        change(&Node::same_as, -1);
        change(&Node::dtype, c10::ScalarType::Double);
        change(&Node::is_frozen, false);
        change(&Node::is_hooked, false);
        change(&Node::recompute, Recompute::kNothing);
        change(&Node::is_ignored, false);
        change(&Node::is_group, false);
        change(&Node::reshard, WhenToReshard::kUnset);
        if (node.strategy != Strategy::kFullShard)
          add([&](Program& p) {
            p.models[m].nodes[i].strategy = Strategy::kFullShard;
            p.models[m].nodes[i].reshard = WhenToReshard::kUnset;
          });
        change(&Node::shards, 0);
        change(&Node::size, int64_t{1});
      }
    }
  }

  Program program_;
  std::vector<Program> programs_;
};

std::optional<Finding> goes_wrong(const Program& program, Wrong wrong, const CrewOptions& options) {
  const auto report = run_crew(std::vector<Program>(kRepeats, program), options);
  return report.finding && report.finding->wrong == wrong ? report.finding : std::nullopt;
}

}  // namespace

std::vector<Program> simpler(const Program& program) { return Simplifier(program).all(); }

std::optional<Shrunk> shrink(const Program& program, const Finding& finding, const CrewOptions& options) {
  const auto end = Clock::now() + kPatience;
  auto patient = options;
  patient.longest_lag *= kLonger;
  auto first = goes_wrong(program, finding.wrong, patient);
  if (!first) return std::nullopt;
  Shrunk shrunk{program, *first};
  for (bool found = true; found && Clock::now() < end;) {
    found = false;
    for (auto& candidate : simpler(shrunk.program)) {
      if (Clock::now() > end) break;
      const auto its = goes_wrong(candidate, finding.wrong, patient);
      if (!its) continue;
      shrunk = {std::move(candidate), *its};
      found = true;
      break;
    }
  }
  return shrunk;
}

}  // namespace fsdp::test::fuzz
