#include "runtime/backward_hooks.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>
#include <typeinfo>
#include <utility>

#include "runtime/compat.h"
#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp::runtime {
namespace {

using torch::autograd::variable_list;

// A node of the group, or the accumulation of a gradient, is about to start.
void begin_node(ParamGroup& group) {
  std::lock_guard lock(group.rank_state().mutex);
  group.rank_state().enter_backward(group);
  group.rank_state().free_finished(group);
}

class BeforeBackward : public torch::autograd::FunctionPreHook {
 public:
  explicit BeforeBackward(std::weak_ptr<ParamGroup> group) : group_(std::move(group)) {}

  variable_list operator()(const variable_list& gradients) override {
    if (auto group = group_.lock()) begin_node(*group);
    return gradients;
  }

 private:
  std::weak_ptr<ParamGroup> group_;
};

class GradientArrived : public torch::autograd::PostAccumulateGradHook {
 public:
  GradientArrived(std::shared_ptr<ParamGroup> group, size_t slot) : group_(std::move(group)), slot_(slot) {}

  void operator()(const torch::autograd::Variable& parameter) override {
    std::lock_guard lock(group_->rank_state().mutex);
    auto gradient = std::exchange(const_cast<at::Tensor&>(parameter).mutable_grad(), at::Tensor());
    if (gradient.defined()) group_->rank_state().gradient_arrived(*group_, slot_, std::move(gradient));
  }

 private:
  std::shared_ptr<ParamGroup> group_;  // the parameter owns the group
  size_t slot_;
};

// The tensor whose gradient the edge accumulates; null if it leads to another node.
const at::TensorImpl* accumulated_by(const torch::autograd::Edge& edge) {
  // Nothing derives from this type: an exact comparison is cheaper than a cast.
  const auto* node = edge.function.get();
  if (node == nullptr || typeid(*node) != typeid(torch::autograd::AccumulateGrad)) return nullptr;
  return static_cast<const torch::autograd::AccumulateGrad*>(node)->variable.unsafeGetTensorImpl();
}

// Most nodes that read a parameter lead straight to it, also those of custom Functions, which no operator hooks. They
// may ask the parameters they saved for their sizes before any operator takes them.
std::unique_ptr<at::ObserverContext> before_node(const at::RecordFunction&) {
  const auto node = torch::autograd::get_current_node();
  if (!node) return nullptr;
  std::shared_ptr<ParamGroup> last;  // most often a node's parameters are of one group
  for (const auto& edge : node->next_edges()) {
    const auto* tensor = accumulated_by(edge);
    if (tensor == nullptr || !is_marked(*tensor) || !tensor->has_storage()) continue;
    auto part = registry().find(tensor->storage().unsafeGetStorageImpl());
    if (!part || part->group == last) continue;
    begin_node(*part->group);
    last = std::move(part->group);
  }
  return nullptr;
}

}  // namespace

void observe_backward_nodes() {
  static const auto callback =
      at::addGlobalCallback(at::RecordFunctionCallback(before_node).scopes({at::RecordScope::BACKWARD_FUNCTION}));
  static_cast<void>(callback);
}

bool leads_to(const torch::autograd::Node& node, const at::TensorImpl* parameter) {
  return std::ranges::any_of(node.next_edges(), [&](const auto& edge) { return accumulated_by(edge) == parameter; });
}

void hook_parameter(const at::Tensor& parameter, const std::shared_ptr<ParamGroup>& group, size_t slot) {
  // Before the user's, which may look at the parameter. add_hook() wants to be the first and only one.
  torch::autograd::impl::materialize_autograd_meta(parameter);
  auto& hooks = torch::autograd::impl::hooks(parameter);
  hooks.insert(hooks.begin(), std::make_unique<BeforeBackward>(group));
  torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<GradientArrived>(group, slot));
}

void hook_node(torch::autograd::Node& node, const std::shared_ptr<ParamGroup>& group) {
  node.add_pre_hook(std::make_unique<BeforeBackward>(group));
}

}  // namespace fsdp::runtime
