// Where autograd calls: see Note [Before a node].

#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "comm/core/check.h"
#include "runtime/backward.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp::runtime {
namespace {

using torch::autograd::variable_list;

void enter_group(ParamGroup& group) {
  std::lock_guard lock(group.rank_state().mutex);
  enter_backward(group);
}

class BeforeBackward : public torch::autograd::FunctionPreHook {
 public:
  explicit BeforeBackward(std::shared_ptr<ParamGroup> group) : group_(std::move(group)) {}

  variable_list operator()(const variable_list& gradients) override {
    enter_group(*group_);
    return gradients;
  }

  const std::shared_ptr<ParamGroup>& group() const { return group_; }

 private:
  std::shared_ptr<ParamGroup> group_;  // nodes read views of frozen parameters that nobody else may have any more
};

class GradientArrived : public torch::autograd::PostAccumulateGradHook {
 public:
  GradientArrived(std::shared_ptr<ParamGroup> group, size_t slot) : group_(std::move(group)), slot_(slot) {}

  void operator()(const torch::autograd::Variable& parameter) override {
    std::lock_guard lock(group_->rank_state().mutex);
    auto gradient = std::exchange(const_cast<at::Tensor&>(parameter).mutable_grad(), at::Tensor());
    if (gradient.defined()) gradient_arrived(*group_, slot_, std::move(gradient));
  }

  const std::shared_ptr<ParamGroup>& group() const { return group_; }

 private:
  std::shared_ptr<ParamGroup> group_;  // the parameter owns the group
  size_t slot_;
};

// The tensor whose gradient the node accumulates; null if it is another node.
const at::TensorImpl* accumulated_by(const torch::autograd::Node* node) {
  // Nothing derives from this type: an exact comparison is cheaper than a cast.
  if (node == nullptr || typeid(*node) != typeid(torch::autograd::AccumulateGrad)) return nullptr;
  return static_cast<const torch::autograd::AccumulateGrad*>(node)->variable.unsafeGetTensorImpl();
}

// The group of the parameter whose gradient the node accumulates; null if there is none.
std::shared_ptr<ParamGroup> group_of_accumulator(const torch::autograd::Node* node) {
  const auto* tensor = accumulated_by(node);
  if (tensor == nullptr || !is_marked(*tensor)) return nullptr;
  const auto& parameter = static_cast<const torch::autograd::AccumulateGrad*>(node)->variable;
  const auto* hook = torch::autograd::impl::post_acc_grad_hooks(parameter).get();
  if (hook == nullptr || typeid(*hook) != typeid(GradientArrived)) return nullptr;
  return static_cast<const GradientArrived*>(hook)->group();
}

// The tensor whose gradient the node will accumulate in this graph task, if it has nothing to do with fsdp.
const at::Tensor* plain_leaf_of(torch::autograd::Node& node) {
  const auto* tensor = accumulated_by(&node);
  if (tensor == nullptr || is_marked(*tensor) || !runs_in_task(&node)) return nullptr;
  return &static_cast<torch::autograd::AccumulateGrad&>(node).variable;
}

// `groups` are those of the graph, of which there may be none.
void warn_of_trained(const std::vector<at::Tensor>& leaves, const std::vector<std::shared_ptr<ParamGroup>>& groups) {
  const auto trained = registry().leaves.find_trained(leaves);
  if (trained.empty()) return;
  const auto where = [&]() -> std::string {
    if (!groups.empty()) return groups.front()->where("backward");
    try {
      return default_process_group()->where("backward");
    } catch (const UsageError&) {  // this thread has none
      return "fsdp backward: ";
    }
  };
  TORCH_WARN(where(), warning_of(trained));
}

// Whether this thread comes to the graph task for the first time. Tasks nest: an outer one goes on after an inner one.
bool is_new_here(int task) {
  thread_local std::array<int, 4> known = {-1, -1, -1, -1};  // the last one first
  if (known.front() == task) return false;
  auto place = std::ranges::find(known, task);
  const bool is_new = place == known.end();
  if (is_new) *--place = task;
  std::rotate(known.begin(), place, place + 1);
  return is_new;
}

// From its first node on, all groups that the graph leads to show whole parameters: hooks and custom Functions may ask
// for sizes before a node runs that is known to read them.
void begin_task(torch::autograd::Node& first) {
  if (!is_new_here(torch::autograd::get_current_graph_task_id())) return;
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (nodes == nullptr) return;
  std::vector<std::shared_ptr<ParamGroup>> groups;
  const bool looks_for_trained = registry().leaves.looks();
  std::vector<at::Tensor> plain_leaves;
  const auto add = [&](std::shared_ptr<ParamGroup> group) {
    if (group && (groups.empty() || groups.back() != group)) groups.push_back(std::move(group));
  };
  const auto scopes = registry().scopes();
  const auto add_groups_of = [&](torch::autograd::Node& node) {
    if (auto group = group_of_accumulator(&node)) return add(std::move(group));
    if (looks_for_trained)
      if (const auto* leaf = plain_leaf_of(node)) plain_leaves.push_back(*leaf);
    for (const auto& pointer : node.pre_hooks()) {
      const auto& hook = *pointer;
      if (typeid(hook) == typeid(BeforeBackward)) add(static_cast<const BeforeBackward&>(hook).group());
    }
    for (const auto& scope : scopes)
      if (scope->has_node(node.thread_id(), node.sequence_nr())) add(scope->outermost.lock());
  };
  add_groups_of(first);  // not among those that others lead to
  for (auto* node : *nodes) add_groups_of(*node);
  // The set has another order on every rank.
  const auto number = [](const auto& group) { return std::pair(group->id(), group.get()); };
  std::ranges::sort(groups, {}, number);
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  for (const auto& group : groups) enter_group(*group);
  if (!plain_leaves.empty()) warn_of_trained(plain_leaves, groups);
}

std::unique_ptr<at::ObserverContext> before_node(const at::RecordFunction&) {
  const auto node = torch::autograd::get_current_node();
  if (node) begin_task(*node);
  return nullptr;
}

// A forward would use it, and its gradient would be expected to have the sizes of the rows.
void require_no_accumulator_of_rows(const ParamGroup& group, const ParamSlot& slot, const at::Tensor& parameter) {
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  if (!accumulator) return;
  const auto& expected = accumulator->input_metadata(0);
  const auto found = C10_AS_INTARRAYREF_SLOW(expected.shape_as_dim_vector());
  if (found == slot.sizes() && expected.device() == slot.form().device) return;
  require(false, group.where("forward scope"), "the gradient accumulator of parameter '", slot.name(),
          "' was taken outside a forward scope and is kept: it expects the gradient of this rank's rows ", found,
          " on ", expected.device(), ", not of the whole sizes ", slot.sizes(), " on ", slot.form().device,
          ". Let it go, and take it in a forward scope");
}

}  // namespace

void observe_backward_nodes() {
  static const auto callback =
      at::addGlobalCallback(at::RecordFunctionCallback(before_node).scopes({at::RecordScope::BACKWARD_FUNCTION}));
  static_cast<void>(callback);
}

bool leads_to(const torch::autograd::Node& node, const at::TensorImpl* parameter) {
  return std::ranges::any_of(node.next_edges(),
                             [&](const auto& edge) { return accumulated_by(edge.function.get()) == parameter; });
}

void hook_parameters(const std::shared_ptr<ParamGroup>& group) {
  for (size_t i = 0; i < group->slots().size(); ++i) {
    const auto parameter = group->slots()[i].tensor();
    // Before the user's, which may look at the parameter. add_hook() wants to be the first and only one.
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

void require_own_hooks(const std::shared_ptr<ParamGroup>& group) {
  for (size_t i = 0; i < group->slots().size(); ++i) {
    const auto& slot = group->slots()[i];
    const auto parameter = slot.tensor();
    if (!parameter.defined()) continue;
    require_no_accumulator_of_rows(*group, slot, parameter);
    const auto* hook = torch::autograd::impl::post_acc_grad_hooks(parameter).get();
    if (hook != nullptr && typeid(*hook) == typeid(GradientArrived)) continue;
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<GradientArrived>(group, i));
    require(false, group->where("forward scope"), "the hook of parameter '", slot.name(),
            "' that hands its gradient to fsdp was replaced (torch::autograd::impl::set_post_acc_grad_hooks), so ranks "
            "would train apart. It is back now, and the other one is gone: use register_hook, which gets the whole "
            "gradient");
  }
}

void hook_node(torch::autograd::Node& node, const std::shared_ptr<ParamGroup>& group) {
  node.add_pre_hook(std::make_unique<BeforeBackward>(group));
}

}  // namespace fsdp::runtime
