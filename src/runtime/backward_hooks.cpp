#include "runtime/backward_hooks.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include "runtime/compat.h"
#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp::runtime {
namespace {

using torch::autograd::variable_list;

// A node, or the accumulation of a gradient, is about to start.
class BeforeBackward : public torch::autograd::FunctionPreHook {
 public:
  explicit BeforeBackward(std::weak_ptr<ParamGroup> group) : group_(std::move(group)) {}

  variable_list operator()(const variable_list& gradients) override {
    if (auto group = group_.lock()) {
      std::lock_guard lock(group->rank_state().mutex);
      group->rank_state().enter_backward(*group);
      group->rank_state().free_finished(*group);
    }
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

// The node of a custom Function is hooked by no operator, and may ask the parameters it saved for their sizes before
// any operator takes them. Its edges lead to their accumulators.
std::unique_ptr<at::ObserverContext> before_node(const at::RecordFunction&) {
  const auto node = torch::autograd::get_current_node();
  if (!node) return nullptr;
  for (const auto& edge : node->next_edges()) {
    const auto* accumulator = dynamic_cast<const torch::autograd::AccumulateGrad*>(edge.function.get());
    if (accumulator == nullptr || !accumulator->variable.defined()) continue;
    const auto& parameter = accumulator->variable;
    if (!is_marked(*parameter.unsafeGetTensorImpl()) || !parameter.has_storage()) continue;
    if (auto part = registry().find(parameter.storage().unsafeGetStorageImpl())) {
      std::lock_guard lock(part->group->rank_state().mutex);
      part->group->rank_state().enter_backward(*part->group);
    }
  }
  return nullptr;
}

}  // namespace

void observe_backward_nodes() {
  static const auto callback =
      at::addGlobalCallback(at::RecordFunctionCallback(before_node).scopes({at::RecordScope::BACKWARD_FUNCTION}));
  static_cast<void>(callback);
}

void hook_parameter(const at::Tensor& parameter, const std::shared_ptr<ParamGroup>& group, size_t slot) {
  torch::autograd::impl::add_hook(parameter, std::make_unique<BeforeBackward>(group));
  torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<GradientArrived>(group, slot));
}

void hook_node(torch::autograd::Node& node, const std::shared_ptr<ParamGroup>& group) {
  node.add_pre_hook(std::make_unique<BeforeBackward>(group));
}

}  // namespace fsdp::runtime
