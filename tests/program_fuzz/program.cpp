#include "program_fuzz/program.h"

namespace fsdp::test::fuzz {
namespace {

void number_list(std::vector<Statement>& statements, int& next) {
  for (auto& statement : statements) {
    statement.number = next++;
    number_list(statement.body, next);
  }
}

void append(const std::vector<Statement>& statements, std::vector<const Statement*>& order) {
  for (const auto& statement : statements) {
    order.push_back(&statement);
    append(statement.body, order);
  }
}

}  // namespace

void Program::number_statements() {
  int next = 0;
  number_list(statements, next);
}

std::vector<const Statement*> in_order(const Program& program) {
  std::vector<const Statement*> order;
  append(program.statements, order);
  return order;
}

bool may_recompute(const Model& model, int node) {
  const auto is_refused = [](Cell cell) { return cell == Cell::kRunning || cell == Cell::kFunction; };
  for (int i = node; i < static_cast<int>(model.nodes.size()); ++i)
    if (is_within(model, i, node) && is_refused(model.nodes[static_cast<size_t>(i)].cell)) return false;
  return true;
}

const Node& options_of(const Model& model, int group) {
  return model.nodes[static_cast<size_t>(model.by_policy ? 0 : group)];
}

int shards_of(const Program& program, const Node& options) {
  return options.shards == 0 ? program.world_size : options.shards;
}

bool is_within(const Model& model, int node, int ancestor) {
  while (node > ancestor) node = model.nodes[static_cast<size_t>(node)].parent;
  return node == ancestor;
}

bool has_body(Kind kind) { return kind == Kind::kScope || kind == Kind::kNoSync || kind == Kind::kLocalRows; }

}  // namespace fsdp::test::fuzz
