#include <fsdp/clone.h>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include "api/group_view.h"
#include "api/plan.h"
#include "comm/core/check.h"
#include "runtime/param_group.h"

namespace fsdp {
namespace {

void require_at_rest(const Group& model, const char* operation) {
  const auto& groups = param_groups(model);
  const MutexLock lock(groups.front()->rank_state().mutex);
  require_values(groups, operation);
  for (const auto& group : groups) require_between_steps(*group, operation);
}

}  // namespace

struct Clone::Values {
  Group model;
  std::vector<runtime::NamedParameter> tensors;  // the model's parameters and buffers
  std::vector<at::Tensor> copies;

  // Returns each tensor of the model, detached, with its copy.
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs(const char* operation) const {
    require_at_rest(model, operation);
    std::vector<std::pair<at::Tensor, at::Tensor>> all;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto& [name, tensor] = tensors[i];
      require(tensor.sizes() == copies[i].sizes() && tensor.scalar_type() == copies[i].scalar_type() &&
                  tensor.device() == copies[i].device(),
              param_groups(model).front()->where(operation), "'", name, "' is ", tensor.sizes(), " of ",
              tensor.scalar_type(), " on ", tensor.device(), ", and its copy is ", copies[i].sizes(), " of ",
              copies[i].scalar_type(), " on ", copies[i].device(),
              ": the strategy, device or dtype of the model has changed since it was cloned. Clone the model again");
      all.emplace_back(tensor.detach(), copies[i]);
    }
    return all;
  }

  void exchange(const char* operation) const {
    const at::NoGradGuard no_grad;
    for (auto& [tensor, copy] : pairs(operation)) {
      const auto before = copy.clone();
      copy.copy_(tensor);
      tensor.copy_(before);
    }
  }
};

Clone clone(const Group& model) {
  require_at_rest(model, "clone");
  const at::NoGradGuard no_grad;
  auto values = std::make_shared<Clone::Values>(Clone::Values{model, subtree_tensors(*GroupView::of(model).tree), {}});
  for (const auto& [name, tensor] : values->tensors) values->copies.push_back(tensor.detach().clone());
  return Clone(std::move(values));
}

Clone::Clone(std::shared_ptr<Values> values) : values_(std::move(values)) {}

void Clone::update(double decay) {
  require(decay >= 0 && decay <= 1, param_groups(values_->model).front()->where("Clone::update"),
          "expected a decay from 0 to 1, found ", decay);
  const at::NoGradGuard no_grad;
  const auto parameters = subtree_parameters(*GroupView::of(values_->model).tree).size();
  size_t place = 0;
  for (auto& [tensor, copy] : values_->pairs("Clone::update"))
    if (place++ < parameters && copy.is_floating_point())
      copy.mul_(decay).add_(tensor, 1 - decay);
    else
      copy.copy_(tensor);
}

UseClone Clone::use() { return UseClone(values_); }

std::vector<std::pair<std::string, at::Tensor>> Clone::values() const {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (size_t i = 0; i < values_->tensors.size(); ++i) all.emplace_back(values_->tensors[i].name, values_->copies[i]);
  return all;
}

UseClone::UseClone(std::shared_ptr<Clone::Values> values) : values_(std::move(values)) {
  values_->exchange("Clone::use");
}

UseClone::~UseClone() {
  try {
    values_->exchange("the end of Clone::use");
  } catch (const std::exception& error) {
    TORCH_WARN(
        "The model keeps the clone's values, and the clone has the model's, because exchanging them back failed: ",
        error.what());
  }
}

}  // namespace fsdp
