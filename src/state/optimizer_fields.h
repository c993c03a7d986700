#pragma once
/// \file
/// The fields of each optimizer's options and state. Saving and loading share these lists.

#include <fsdp/optim.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/rmsprop.h>

namespace fsdp::state {

// Each overload of fields_of calls `visit(name, field)` for all fields of its argument.
void fields_of(torch::optim::AdamWOptions& o, const auto& visit) {
  visit("lr", o.lr()), visit("betas", o.betas()), visit("eps", o.eps());
  visit("weight_decay", o.weight_decay()), visit("amsgrad", o.amsgrad());
}
void fields_of(torch::optim::AdamWParamState& s, const auto& visit) {
  visit("step", s.step()), visit("exp_avg", s.exp_avg()), visit("exp_avg_sq", s.exp_avg_sq());
  visit("max_exp_avg_sq", s.max_exp_avg_sq());
}
void fields_of(torch::optim::AdamOptions& o, const auto& visit) {
  visit("lr", o.lr()), visit("betas", o.betas()), visit("eps", o.eps());
  visit("weight_decay", o.weight_decay()), visit("amsgrad", o.amsgrad());
}
void fields_of(torch::optim::AdamParamState& s, const auto& visit) {
  visit("step", s.step()), visit("exp_avg", s.exp_avg()), visit("exp_avg_sq", s.exp_avg_sq());
  visit("max_exp_avg_sq", s.max_exp_avg_sq());
}
void fields_of(torch::optim::SGDOptions& o, const auto& visit) {
  visit("lr", o.lr()), visit("momentum", o.momentum()), visit("dampening", o.dampening());
  visit("weight_decay", o.weight_decay()), visit("nesterov", o.nesterov());
}
void fields_of(torch::optim::SGDParamState& s, const auto& visit) { visit("momentum_buffer", s.momentum_buffer()); }
void fields_of(torch::optim::AdagradOptions& o, const auto& visit) {
  visit("lr", o.lr()), visit("lr_decay", o.lr_decay()), visit("weight_decay", o.weight_decay());
  visit("initial_accumulator_value", o.initial_accumulator_value()), visit("eps", o.eps());
}
void fields_of(torch::optim::AdagradParamState& s, const auto& visit) {
  visit("step", s.step()), visit("sum", s.sum());
}
void fields_of(torch::optim::RMSpropOptions& o, const auto& visit) {
  visit("lr", o.lr()), visit("alpha", o.alpha()), visit("eps", o.eps()), visit("weight_decay", o.weight_decay());
  visit("momentum", o.momentum()), visit("centered", o.centered());
}
void fields_of(torch::optim::RMSpropParamState& s, const auto& visit) {
  visit("step", s.step()), visit("square_avg", s.square_avg()), visit("momentum_buffer", s.momentum_buffer());
  visit("grad_avg", s.grad_avg());
}
void fields_of(optim::AdadeltaOptions& o, const auto& visit) {
  visit("lr", o.lr()), visit("rho", o.rho()), visit("eps", o.eps()), visit("weight_decay", o.weight_decay());
}
void fields_of(optim::AdadeltaParamState& s, const auto& visit) {
  visit("step", s.step()), visit("square_avg", s.square_avg()), visit("acc_delta", s.acc_delta());
}

/// A type of optimizer, with the types of its options and of the state of a parameter.
template <class OptionsOfKind, class StateOfKind>
struct Kind {
  using Options = OptionsOfKind;
  using State = StateOfKind;
  const char* name;
};

/// Calls `act` with the Kind that has the type of `options`. Returns false if there is none.
bool with_kind(const torch::optim::OptimizerOptions& options, const auto& act) {
  const auto is = [&]<class Options, class State>(const Kind<Options, State>& kind) {
    if (!dynamic_cast<const Options*>(&options)) return false;
    act(kind);
    return true;
  };
  return is(Kind<torch::optim::AdamWOptions, torch::optim::AdamWParamState>{"AdamW"}) ||
         is(Kind<torch::optim::AdamOptions, torch::optim::AdamParamState>{"Adam"}) ||
         is(Kind<torch::optim::SGDOptions, torch::optim::SGDParamState>{"SGD"}) ||
         is(Kind<torch::optim::AdagradOptions, torch::optim::AdagradParamState>{"Adagrad"}) ||
         is(Kind<torch::optim::RMSpropOptions, torch::optim::RMSpropParamState>{"RMSprop"}) ||
         is(Kind<optim::AdadeltaOptions, optim::AdadeltaParamState>{"Adadelta"});
}

/// A visitor for fields_of that calls `act` only for fields that are tensors.
template <class Act>
struct ForTensors {
  Act act;
  void operator()(const char* /*name*/, auto& /*value*/) const {}
  void operator()(const char* name, at::Tensor& value) const { act(name, value); }
};

}  // namespace fsdp::state
