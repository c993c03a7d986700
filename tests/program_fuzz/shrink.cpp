#include "program_fuzz/fuzz.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include "program_fuzz/rules.h"

namespace fsdp::test::fuzz {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::minutes(4);
// Number of times that one crew runs the program, because a race may need several runs to show.
constexpr size_t kRepeats = 4;
constexpr int kLonger = 3;  // factor by which lags are longer than usual

// Removes the statements with numbers in [first, last), but keeps bodies of other statements. With `hoist`, the body of
// a removed statement takes its place.
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

// Makes programs that are simpler by one change. The largest changes come first.
class Simplifier {
 public:
  explicit Simplifier(const Program& program) : program_(program) { number_statements(program_); }

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
    number_statements(simpler);
    if (!(simpler == program_) && is_well_defined(simpler)) programs_.push_back(std::move(simpler));
  }

  void leave_out_statements() {
    const auto count = static_cast<int>(in_order(program_).size());
    for (int length = std::max(1, count / 2);; length /= 2) {
      for (int first = 0; first < count; first += length)
        for (bool hoist : {false, true})
          add([&](Program& p) { leave_out(p.statements, first, first + length, hoist); });
      if (length == 1) break;
    }
  }

  void simplify_statements() {
    const std::function<void(Statement&)> changes[] = {
        [](Statement& s) { s.lag = {}; },
        [](Statement& s) { s.lag.inside = false; },
        [](Statement& s) { s.flag = s.flag && s.kind == Kind::kForward; },
        [](Statement& s) { s.other = -1; },
        [](Statement& s) { s.at = 0; },
        [](Statement& s) { s.entry = Entry::kScope; },
        [](Statement& s) {
          using enum Kind;
          if (s.kind == kGrad) s.node = -1;
          if (s.kind == kForward || s.kind == kEvaluate || s.kind == kScope || s.kind == kThrow) s.node = s.at = 0;
        },
        [](Statement& s) { s.nodes.resize(s.nodes.empty() ? 0 : s.nodes.size() - 1); },
        [](Statement& s) { s.seed = 0; },
        [](Statement& s) { s.rank = -1; },
    };
    for (size_t number = 0; number < in_order(program_).size(); ++number)
      for (const auto& change : changes)
        add([&](Program& p) {
          for_each_statement(p.statements, [&](Statement& s) {
            if (s.number == static_cast<int>(number)) change(s);
          });
        });
  }

  void leave_out_nodes() {
    for (int m = 0; m < kModels; ++m)
      for (int node = static_cast<int>(item(program_.models, m).nodes.size()) - 1; node > 0; --node)
        add([&](Program& p) { leave_out_node(p, m, node); });
  }

  // Removes the node and everything below it.
  static void leave_out_node(Program& p, int m, int node) {
    auto& nodes = item(p.models, m).nodes;
    std::vector<int> places;
    std::vector<Node> kept;
    for (auto one : nodes) {
      const int number = static_cast<int>(places.size());
      const bool stays = number != node && (one.parent < 0 || item(places, one.parent) >= 0);
      places.push_back(stays ? static_cast<int>(kept.size()) : -1);
      for (int* source : {&one.parent, &one.tied_to, &one.same_as})
        if (*source >= 0) *source = item(places, *source);
      if (stays) kept.push_back(one);
    }
    nodes = std::move(kept);
    const auto move = [&](int& place) {
      if (place > 0) place = std::max(0, item(places, place));
    };
    for_each_statement(p.statements, [&](Statement& s) {
      if (s.model != m) return;
      move(s.node);
      move(s.at);
      for (int& other : s.nodes) move(other);
    });
  }

  void simplify_models() {
    add([](Program& p) { p.width = std::min<int64_t>(p.width, 2); });
    add([](Program& p) { p.samples = 1; });
    for (int m = 0; m < kModels; ++m) {
      reset_fields(kFieldsOfModel, [m](Program& p) -> Model& { return item(p.models, m); });
      for (int i = 0; i < static_cast<int>(item(program_.models, m).nodes.size()); ++i) {
        const auto node_of = [m, i](Program& p) -> Node& { return item(item(p.models, m).nodes, i); };
        const Cell cell = node_of(program_).cell;
        if (i > 0 && cell != Cell::kSequence && cell != Cell::kScale)
          add([&](Program& p) { node_of(p).cell = Cell::kLinear; });
        reset_fields(kFieldsOfNode, node_of);
      }
    }
  }

  // For each field, makes a program in which the object that `find` finds has the field's default value.
  template <class... Fields, class Find>
  void reset_fields(const std::tuple<Fields...>& fields, const Find& find) {
    const auto reset = [&](const auto& field) {
      const std::remove_reference_t<decltype(find(program_))> plain{};
      add([&](Program& p) { find(p).*field.member = plain.*field.member; });
    };
    std::apply([&](const auto&... field) { (reset(field), ...); }, fields);
  }

  Program program_;
  std::vector<Program> programs_;
};

std::optional<Finding> goes_wrong(const Program& program, Wrong wrong, const CrewOptions& options) {
  const auto report = run_crew(std::vector<Program>(kRepeats, program), options);
  return report.finding && report.finding->wrong == wrong ? report.finding : std::nullopt;
}

}  // namespace

std::optional<Shrunk> shrink(const Program& program, const Finding& finding, const CrewOptions& options) {
  const auto end = Clock::now() + kPatience;
  auto patient = options;
  patient.longest_lag *= kLonger;
  auto first = goes_wrong(program, finding.wrong, patient);
  if (!first) return std::nullopt;
  Shrunk shrunk{program, *first};
  for (bool found = true; found && Clock::now() < end;) {
    found = false;
    for (auto& candidate : Simplifier(shrunk.program).all()) {
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
