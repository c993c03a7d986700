#include "runtime/backward_hooks.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "runtime/param_group.h"

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

}  // namespace

void hook_parameter(const at::Tensor& parameter, const std::shared_ptr<ParamGroup>& group, size_t slot) {
  torch::autograd::impl::add_hook(parameter, std::make_unique<BeforeBackward>(group));
  torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<GradientArrived>(group, slot));
}

void hook_result(const at::Tensor& result, const std::shared_ptr<ParamGroup>& group) {
  if (!result.defined()) return;
  if (const auto& node = result.grad_fn()) node->add_pre_hook(std::make_unique<BeforeBackward>(group));
}

}  // namespace fsdp::runtime
