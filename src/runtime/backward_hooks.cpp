// The hooks that autograd calls; see Note [Before a node].

#include <ATen/record_function.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <typeinfo>
#include <utility>
#include <vector>

#include "runtime/backward.h"
#include "runtime/compat.h"

namespace fsdp::runtime {
namespace {

void enter_group(ParamGroup& group) {
  auto& rank = group.rank_state();
  const MutexLock lock(rank.mutex);
  enter_backward(rank, group);
}

struct BeforeBackward : torch::autograd::FunctionPreHook {
  explicit BeforeBackward(std::shared_ptr<ParamGroup> whose) : group(std::move(whose)) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    enter_group(*group);
    return gradients;
  }

  const std::shared_ptr<ParamGroup> group;  // owned, because the node may hold the last view of a frozen parameter
};

struct GradientArrived : torch::autograd::PostAccumulateGradHook {
  GradientArrived(std::shared_ptr<ParamGroup> whose, size_t which) : group(std::move(whose)), slot(which) {}

  void operator()(const torch::autograd::Variable& parameter) override {
    auto& rank = group->rank_state();
    const MutexLock lock(rank.mutex);
    auto gradient = std::exchange(const_cast<at::Tensor&>(parameter).mutable_grad(), at::Tensor());
    if (gradient.defined()) gradient_arrived(rank, *group, slot, std::move(gradient));
  }

  const std::shared_ptr<ParamGroup> group;  // owned, so that the group lives as long as the parameter
  const size_t slot;
};

// Returns the group of the parameter whose gradient the node accumulates; null if there is none.
std::shared_ptr<ParamGroup> group_of_accumulator(const torch::autograd::Node* node) {
  // No class derives from AccumulateGrad, so an exact comparison suffices, which is cheaper than a dynamic_cast.
  if (node == nullptr || typeid(*node) != typeid(torch::autograd::AccumulateGrad)) return nullptr;
  const auto& parameter = static_cast<const torch::autograd::AccumulateGrad*>(node)->variable;
  if (!is_marked(*parameter.unsafeGetTensorImpl())) return nullptr;
  const auto* hook = torch::autograd::impl::post_acc_grad_hooks(parameter).get();
  if (hook == nullptr || typeid(*hook) != typeid(GradientArrived)) return nullptr;
  return static_cast<const GradientArrived*>(hook)->group;
}

// Returns true if this thread runs a node of the graph task for the first time. The thread remembers several tasks,
// because tasks nest: an outer one goes on after an inner one.
bool is_new_here(int task) {
  thread_local std::array<int, 4> known = {-1, -1, -1, -1};  // the most recent task first
  if (known.front() == task) return false;
  auto place = std::ranges::find(known, task);
  const bool is_new = place == known.end();
  if (is_new) *--place = task;
  std::rotate(known.begin(), place, place + 1);
  return is_new;
}

// Enters all groups to which the task's graph leads, before the task's first node runs. Later would be too late,
// because hooks and custom Functions may ask for a parameter's sizes before a node reads it.
std::unique_ptr<at::ObserverContext> before_node(const at::RecordFunction&) {
  const auto first = torch::autograd::get_current_node();
  if (!first || !is_new_here(torch::autograd::get_current_graph_task_id())) return nullptr;
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (nodes == nullptr) return nullptr;
  std::vector<std::shared_ptr<ParamGroup>> groups;
  const auto add = [&](std::shared_ptr<ParamGroup> group) {
    if (group && (groups.empty() || groups.back() != group)) groups.push_back(std::move(group));
  };
  const auto add_groups_of = [&](torch::autograd::Node& node) {
    if (auto group = group_of_accumulator(&node)) return add(std::move(group));
    for (const auto& pointer : node.pre_hooks()) {
      const auto& hook = *pointer;
      if (typeid(hook) == typeid(BeforeBackward)) add(static_cast<const BeforeBackward&>(hook).group);
    }
  };
  add_groups_of(*first);  // autograd's set has only nodes to which other nodes lead
  for (auto* node : *nodes) add_groups_of(*node);
  // The set's order differs between ranks, so the groups are sorted.
  const auto number = [](const auto& group) { return std::pair(group->id(), group.get()); };
  std::ranges::sort(groups, {}, number);
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  for (const auto& group : groups) enter_group(*group);
  return nullptr;
}

}  // namespace

void observe_backward_nodes() {
  [[maybe_unused]] static const auto callback =
      at::addGlobalCallback(at::RecordFunctionCallback(before_node).scopes({at::RecordScope::BACKWARD_FUNCTION}));
}

bool leads_to(const torch::autograd::Node& node, const ParamGroup& group) {
  return std::ranges::any_of(node.next_edges(), [&](const torch::autograd::Edge& edge) {
    return group_of_accumulator(edge.function.get()).get() == &group;
  });
}

void hook_parameters(const std::shared_ptr<ParamGroup>& group) {
  for (size_t i = 0; i < group->slots().size(); ++i) {
    const auto parameter = group->slots()[i].tensor();
    // This hook comes before the user's hooks, which may look at the parameter. It is inserted by hand, because
    // LibTorch's add_hook() requires that there are no other hooks.
    torch::autograd::impl::materialize_autograd_meta(parameter);
    auto& hooks = torch::autograd::impl::hooks(parameter);
    hooks.insert(hooks.begin(), std::make_unique<BeforeBackward>(group));
  }
  hook_gradients(group);
}

void hook_gradients(const std::shared_ptr<ParamGroup>& group) {
  for (size_t i = 0; i < group->slots().size(); ++i)
    torch::autograd::impl::set_post_acc_grad_hooks(group->slots()[i].tensor(),
                                                   std::make_unique<GradientArrived>(group, i));
}

void hook_node(torch::autograd::Node& node, const std::shared_ptr<ParamGroup>& group) {
  node.add_pre_hook(std::make_unique<BeforeBackward>(group));
}

}  // namespace fsdp::runtime
