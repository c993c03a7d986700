#include <fsdp/adadelta.h>
#include <torch/optim/serialize.h>

namespace fsdp::optim {

AdadeltaOptions::AdadeltaOptions(double lr) : lr_(lr) {}

bool operator==(const AdadeltaOptions& a, const AdadeltaOptions& b) {
  return a.lr() == b.lr() && a.rho() == b.rho() && a.eps() == b.eps() && a.weight_decay() == b.weight_decay();
}

void AdadeltaOptions::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(rho);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(eps);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
}

void AdadeltaOptions::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, rho);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, eps);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
}

double AdadeltaOptions::get_lr() const { return lr(); }

void AdadeltaOptions::set_lr(double new_lr) { lr(new_lr); }

void AdadeltaParamState::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(step);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(square_avg);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(acc_delta);
}

void AdadeltaParamState::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(int64_t, step);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(at::Tensor, square_avg);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(at::Tensor, acc_delta);
}

AdadeltaBase::AdadeltaBase(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                           const AdadeltaOptions& defaults)
    : Optimizer(std::vector<torch::optim::OptimizerParamGroup>{}, std::make_unique<AdadeltaOptions>(defaults)) {
  for (const auto& group : groups) add_param_group(group);
}

void AdadeltaBase::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  Optimizer::add_param_group(group);
  if (group.has_options()) param_groups().back().set_options(group.options().clone());
}

void AdadeltaBase::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<AdadeltaParamState, AdadeltaOptions>(archive, *this);
}

void AdadeltaBase::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<AdadeltaParamState, AdadeltaOptions>(archive, *this);
}

}  // namespace fsdp::optim
