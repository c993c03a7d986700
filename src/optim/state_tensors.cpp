#include "optim/state_tensors.h"

#include <fsdp/optim.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/rmsprop.h>

namespace fsdp::optim {

std::vector<at::Tensor*> tensors_of(torch::optim::OptimizerParamState& state) {
  if (auto* adamw = dynamic_cast<torch::optim::AdamWParamState*>(&state))
    return {&adamw->exp_avg(), &adamw->exp_avg_sq(), &adamw->max_exp_avg_sq()};
  if (auto* adam = dynamic_cast<torch::optim::AdamParamState*>(&state))
    return {&adam->exp_avg(), &adam->exp_avg_sq(), &adam->max_exp_avg_sq()};
  if (auto* sgd = dynamic_cast<torch::optim::SGDParamState*>(&state)) return {&sgd->momentum_buffer()};
  if (auto* rmsprop = dynamic_cast<torch::optim::RMSpropParamState*>(&state))
    return {&rmsprop->square_avg(), &rmsprop->momentum_buffer(), &rmsprop->grad_avg()};
  if (auto* adagrad = dynamic_cast<torch::optim::AdagradParamState*>(&state)) return {&adagrad->sum()};
  if (auto* adadelta = dynamic_cast<AdadeltaParamState*>(&state))
    return {&adadelta->square_avg(), &adadelta->acc_delta()};
  return {};
}

}  // namespace fsdp::optim
