#pragma once
/// \file
/// Traits of the flat optimizers: which options are valid, which state a parameter has, and by which rule a step
/// updates it.

#include <fsdp/optim.h>

#include <cmath>

#include "comm/core/check.h"
#include "optim/rules.h"

namespace fsdp::optim {

/// Base of the traits, with defaults that apply to most optimizers.
struct CommonKind {
  /// True if `count` returns the parameter's step count.
  static constexpr bool kCountsSteps = true;
  /// Returns true if a parameter with these options has state.
  static bool keeps_state(const auto& /*options*/) { return true; }
  /// Returns true if the state may be bf16 or fp16.
  static bool takes_short_state(const auto& /*options*/) { return true; }
  /// Returns the initial value of each element of the state.
  static double initial(const auto& /*defaults*/) { return 0; }
  /// Counts a step of one parameter and returns a number. Only parameters with equal numbers may share a run.
  static int64_t count(auto& state, bool /*is_new*/) {
    state.step(state.step() + 1);
    return state.step();
  }
  /// Returns true if a step maps zeros to zeros, so that the padding between parameters stays zero. With an eps that is
  /// 0 in fp32, a step would compute 0/0.
  static bool keeps_zeros(const auto& options) { return static_cast<float>(options.eps()) > 0; }
};

/// Traits of the optimizer whose options are `Options`, a class of torch::optim or AdadeltaOptions.
template <class Options>
struct Kind;

/// Checks of one optimizer's options. They throw UsageError if a value is out of range.
struct Expect {
  const char* optimizer;
  void at_least_0(const char* name, double value) const {
    require(value >= 0, "[fsdp] optim::", optimizer, ": expected ", name, " of at least 0, found ", value, ".");
  }
  void below_1(const char* name, double value) const {
    require(value >= 0 && value < 1, "[fsdp] optim::", optimizer, ": expected ", name, " in [0, 1), found ",
            value, ".");
  }
};

template <class Options, class StateOfKind, bool kIsDecoupled>
struct AdamKind : CommonKind {
  using State = StateOfKind;
  static void check(const Options& o, const Expect& expect) {
    expect.at_least_0("lr", o.lr());
    expect.at_least_0("eps", o.eps());
    expect.at_least_0("weight_decay", o.weight_decay());
    expect.below_1("the first of betas", std::get<0>(o.betas()));
    expect.below_1("the second of betas", std::get<1>(o.betas()));
  }
  static std::vector<at::Tensor*> kept(State& state, const Options& o) {
    std::vector<at::Tensor*> kept{&state.exp_avg(), &state.exp_avg_sq()};
    if (o.amsgrad()) kept.push_back(&state.max_exp_avg_sq());
    return kept;
  }
  static Rule rule(const Options& o, int64_t step) {
    const auto [beta1, beta2] = o.betas();
    const auto t = static_cast<double>(step);
    return AdamRule{o.lr(),       beta1, beta2, o.eps(), o.weight_decay(), o.amsgrad(), kIsDecoupled, step,
                    1 - std::pow(beta1, t), 1 - std::pow(beta2, t)};
  }
};
template <>
struct Kind<torch::optim::AdamWOptions> : AdamKind<torch::optim::AdamWOptions, torch::optim::AdamWParamState, true> {
  static constexpr const char* kName = "AdamW";
};
template <>
struct Kind<torch::optim::AdamOptions> : AdamKind<torch::optim::AdamOptions, torch::optim::AdamParamState, false> {
  static constexpr const char* kName = "Adam";
};

template <>
struct Kind<torch::optim::SGDOptions> : CommonKind {
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
  static constexpr const char* kName = "SGD";
  static constexpr bool kCountsSteps = false;
  static void check(const Options& o, const Expect& expect) {
    expect.at_least_0("lr", o.lr());
    expect.at_least_0("momentum", o.momentum());
    expect.at_least_0("weight_decay", o.weight_decay());
    require(!o.nesterov() || (o.momentum() > 0 && o.dampening() == 0),
            "[fsdp] optim::SGD: expected momentum above 0 and no dampening for Nesterov's momentum, found momentum ",
            o.momentum(), " and dampening ", o.dampening(), ".");
  }
  // torch::optim::SGD has no state without momentum either.
  static bool keeps_state(const Options& o) { return o.momentum() != 0; }
  static std::vector<at::Tensor*> kept(State& state, const Options& /*o*/) { return {&state.momentum_buffer()}; }
  // SGD has no step count. Its step depends only on whether the momentum buffer is new.
  static int64_t count(State& /*state*/, bool is_new) { return is_new ? 0 : 1; }
  static bool keeps_zeros(const Options& /*o*/) { return true; }
  static Rule rule(const Options& o, int64_t count) {
    return SgdRule{o.lr(), o.momentum(), o.dampening(), o.weight_decay(), o.nesterov(), count == 0};
  }
};

template <>
struct Kind<torch::optim::RMSpropOptions> : CommonKind {
  using Options = torch::optim::RMSpropOptions;
  using State = torch::optim::RMSpropParamState;
  static constexpr const char* kName = "RMSprop";
  static void check(const Options& o, const Expect& expect) {
    expect.at_least_0("lr", o.lr());
    expect.at_least_0("alpha", o.alpha());
    expect.at_least_0("eps", o.eps());
    expect.at_least_0("momentum", o.momentum());
    expect.at_least_0("weight_decay", o.weight_decay());
  }
  static std::vector<at::Tensor*> kept(State& state, const Options& o) {
    std::vector<at::Tensor*> kept{&state.square_avg()};
    if (o.centered()) kept.push_back(&state.grad_avg());
    if (o.momentum() > 0) kept.push_back(&state.momentum_buffer());
    return kept;
  }
  // The variance of a centered RMSprop is square - mean^2. In bf16 or fp16 its rounding error would often exceed its
  // value and make it negative.
  static bool takes_short_state(const Options& o) { return !o.centered(); }
  static Rule rule(const Options& o, int64_t /*step*/) {
    return RmspropRule{o.lr(), o.alpha(), o.eps(), o.weight_decay(), o.momentum(), o.centered()};
  }
};

template <>
struct Kind<torch::optim::AdagradOptions> : CommonKind {
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;
  static constexpr const char* kName = "Adagrad";
  static void check(const Options& o, const Expect& expect) {
    expect.at_least_0("lr", o.lr());
    expect.at_least_0("lr_decay", o.lr_decay());
    expect.at_least_0("eps", o.eps());
    expect.at_least_0("weight_decay", o.weight_decay());
    expect.at_least_0("initial_accumulator_value", o.initial_accumulator_value());
  }
  static double initial(const Options& defaults) { return defaults.initial_accumulator_value(); }
  static std::vector<at::Tensor*> kept(State& state, const Options& /*o*/) { return {&state.sum()}; }
  static Rule rule(const Options& o, int64_t step) {
    return AdagradRule{o.lr() / (1 + static_cast<double>(step - 1) * o.lr_decay()), o.eps(), o.weight_decay()};
  }
};

template <>
struct Kind<AdadeltaOptions> : CommonKind {
  using Options = AdadeltaOptions;
  using State = AdadeltaParamState;
  static constexpr const char* kName = "Adadelta";
  static void check(const Options& o, const Expect& expect) {
    expect.at_least_0("lr", o.lr());
    expect.at_least_0("eps", o.eps());
    expect.at_least_0("weight_decay", o.weight_decay());
    require(o.rho() >= 0 && o.rho() <= 1, "[fsdp] optim::Adadelta: expected rho from 0 to 1, found ", o.rho(), ".");
  }
  static std::vector<at::Tensor*> kept(State& state, const Options& /*o*/) {
    return {&state.square_avg(), &state.acc_delta()};
  }
  static Rule rule(const Options& o, int64_t /*step*/) {
    return AdadeltaRule{o.lr(), o.rho(), o.eps(), o.weight_decay()};
  }
};

}  // namespace fsdp::optim
