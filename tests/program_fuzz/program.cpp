#include "program_fuzz/program.h"

#include <array>

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

int Program::number_statements() {
  int next = 0;
  number_list(statements, next);
  return next;
}

std::vector<const Statement*> in_order(const Program& program) {
  std::vector<const Statement*> order;
  append(program.statements, order);
  return order;
}

bool is_fused(Optimizer kind) { return kind != Optimizer::kSgd && kind != Optimizer::kAdamW; }

const char* name_of(Optimizer kind) {
  constexpr std::array<const char*, kOptimizers> kNames{
      "torch::optim::SGD", "torch::optim::AdamW",  "fsdp::optim::SGD",    "fsdp::optim::AdamW",
      "fsdp::optim::Adam", "fsdp::optim::RMSprop", "fsdp::optim::Adagrad"};
  return kNames[static_cast<size_t>(kind)];
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

const char* name_of(Cell cell) {
  constexpr std::array<const char*, kCells> kNames{"sequence", "linear",   "wide",      "scale",  "norm",
                                                   "table",    "function", "sometimes", "unused", "running",
                                                   "pause",    "large",    "adapter"};
  return kNames[static_cast<size_t>(cell)];
}

const char* name_of(Kind kind) {
  constexpr std::array<const char*, kKinds> kNames{"make",
                                                   "drop",
                                                   "scope",
                                                   "no_sync",
                                                   "LocalRows",
                                                   "forward",
                                                   "evaluate",
                                                   "autograd::grad",
                                                   "backward",
                                                   "forget graph",
                                                   "zero_grad",
                                                   "step",
                                                   "GradScaler",
                                                   "write rows",
                                                   "write one row",
                                                   "write from whole",
                                                   "summon_full_params",
                                                   "unshard",
                                                   "reshard",
                                                   "set_reshard_after_forward",
                                                   "set_reshard_after_backward",
                                                   "set_unshard_in_backward",
                                                   "set_all_reduce_hook",
                                                   "set_post_accumulate_grad_hook",
                                                   "requires_grad_",
                                                   "set_reduce_scatter_unused_params",
                                                   "set_gradient_divide_factor",
                                                   "forward prefetch list",
                                                   "backward prefetch list",
                                                   "clip_grad_norm_",
                                                   "full_tensor",
                                                   "save",
                                                   "throw, reset_iter_state",
                                                   "barrier",
                                                   "compare rows",
                                                   "compare gradients",
                                                   "all_reduce",
                                                   "all_gather",
                                                   "broadcast",
                                                   "mean"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace fsdp::test::fuzz
