#pragma once
/// \file
/// Optimizers and gradient clipping that work on this rank's rows, but also need sums or values of other ranks' rows.
/// docs/precision.md explains them. They also run unsharded, because the functions of fsdp that they call take an
/// ordinary tensor as a whole one.

#include <fsdp/norms.h>
#include <fsdp/parameters.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace own_optimizer {

/// LAMB (Y. You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 minutes, 2020, algorithm 2). It
/// scales Adam's update of each parameter to the parameter's norm.
class Lamb {
 public:
  Lamb(std::vector<torch::Tensor> parameters, double lr, double weight_decay)
      : parameters_(std::move(parameters)), lr_(lr), weight_decay_(weight_decay) {
    for (const auto& p : parameters_) {
      m_.push_back(torch::zeros_like(p.detach()));
      v_.push_back(torch::zeros_like(p.detach()));
    }
  }

  /// Takes a step. Every rank must call this function, and every parameter must have a gradient.
  void step() {
    const torch::NoGradGuard no_grad;
    ++steps_;
    std::vector<torch::Tensor> updates;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const auto& g = parameters_[i].grad();
      m_[i].mul_(0.9).add_(g, 0.1);
      v_[i].mul_(0.999).addcmul_(g, g, 0.001);
      const auto m = m_[i] / (1 - std::pow(0.9, steps_)), v = v_[i] / (1 - std::pow(0.999, steps_));
      updates.push_back(m / (v.sqrt() + 1e-6) + weight_decay_ * parameters_[i]);
    }
    const auto of_parameters = fsdp::norms(parameters_), of_updates = fsdp::norms(updates);  // of all rows
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const bool has_ratio = of_parameters[i] > 0 && of_updates[i] > 0;
      parameters_[i].add_(updates[i], -lr_ * (has_ratio ? of_parameters[i] / of_updates[i] : 1.0));
    }
  }

 private:
  std::vector<torch::Tensor> parameters_, m_, v_;
  double lr_, weight_decay_;
  int steps_ = 0;
};

/// Clips gradients adaptively (A. Brock et al., High-Performance Large-Scale Image Recognition Without Normalization,
/// 2021, equation 3): the gradient of each output unit becomes at most `clipping` times as long as the unit's weights.
/// Collective.
inline void clip_adaptively(const std::vector<torch::Tensor>& parameters, double clipping) {
  const torch::NoGradGuard no_grad;
  for (const auto& p : parameters) {
    if (!p.grad().defined()) continue;
    std::vector<int64_t> dims;  // all dims but the first; none for a vector, so that all its elements are summed
    for (size_t dim = 1; dim < fsdp::global_sizes(p).size(); ++dim) dims.push_back(static_cast<int64_t>(dim));
    const auto longest = fsdp::sum(p * p, dims, true).sqrt().clamp_min(1e-3) * clipping;
    const auto length = fsdp::sum(p.grad() * p.grad(), dims, true).sqrt().clamp_min(1e-6);
    p.mutable_grad().mul_((longest / length).clamp_max(1));  // Each rank uses its rows of the factors.
  }
}

/// Returns approximately the orthogonal factor of a matrix, by five steps of Newton and Schulz (K. Jordan et al., Muon,
/// 2024).
inline torch::Tensor orthogonal(const torch::Tensor& matrix) {
  auto x = matrix / (matrix.norm() + 1e-7);
  const bool is_tall = x.size(0) > x.size(1);
  if (is_tall) x = x.t();
  for (int step = 0; step < 5; ++step) {
    const auto a = x.mm(x.t());
    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a.mm(a)).mm(x);
  }
  return is_tall ? x.t() : x;
}

/// Muon for parameters with two dims. The update is the momentum, whose singular values are first changed to about 1.
class Muon {
 public:
  Muon(std::vector<torch::Tensor> matrices, double lr) : matrices_(std::move(matrices)), lr_(lr) {
    for (const auto& p : matrices_) momentum_.push_back(torch::zeros_like(p.detach()));
  }

  /// Takes a step. Every rank must call this function, and every matrix must have a gradient.
  void step() {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < matrices_.size(); ++i) {
      const auto& p = matrices_[i];
      momentum_[i].mul_(0.95).add_(p.grad());
      const auto whole = orthogonal(fsdp::full_tensor(p.grad() + 0.95 * momentum_[i]));  // a matrix product needs it
      const auto ratio = static_cast<double>(whole.size(0)) / static_cast<double>(whole.size(1));
      p.detach().add_(whole, -lr_ * std::sqrt(std::max(1.0, ratio)));  // each rank uses its rows of the update
    }
  }

 private:
  std::vector<torch::Tensor> matrices_, momentum_;
  double lr_;
};

}  // namespace own_optimizer
