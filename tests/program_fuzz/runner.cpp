#include "program_fuzz/runner.h"

#include <fsdp/optim.h>
#include <torch/torch.h>

#include <stdexcept>

namespace fsdp::test::fuzz {

using torch::Tensor;

namespace {

Tensor loss_of(const Tensor& h) { return h.square().mean(); }

}  // namespace

Tensor Runner::input(const Statement& s) const {
  const auto numbers = torch::arange(program_.samples * program_.width, torch::kDouble);
  return torch::sin(numbers * (0.9 + 0.1 * static_cast<double>(s.seed)) + rank)
      .view({program_.samples, program_.width});
}

void Runner::forward(const Statement& s) {
  Graph made{.x = s.other >= 0 ? graph(s.other).h : input(s).requires_grad_(s.flag), .models = 1U << s.model};
  if (s.other >= 0) made.models |= graph(s.other).models;
  made.h = apply(s, made.x, call(s));
  made.y = loss_of(made.h);
  record(s, made.y);
  graph(s.slot) = made;
}

void Runner::evaluate(const Statement& s) {
  const torch::NoGradGuard no_grad;
  record(s, apply(s, input(s), call(s)));
}

void Runner::grad(const Statement& s) {
  const auto& from = graph(s.slot);
  std::vector<Tensor> inputs{from.x};
  if (s.node >= 0)
    for (const auto& parameter : net(s.model).modules[static_cast<size_t>(s.node)]->parameters(/*recurse=*/false))
      if (parameter.requires_grad()) inputs.push_back(parameter);
  const bool creates = s.other >= 0;
  const auto gradients = torch::autograd::grad({from.y}, inputs, {}, s.flag || creates, creates, /*allow_unused=*/true);
  auto sum = torch::zeros({}, torch::kDouble);
  for (const auto& gradient : gradients) {
    record(s, gradient);
    if (gradient.defined()) sum = sum + gradient.to(torch::kDouble).square().sum();
  }
  if (creates) graph(s.other) = {.x = from.x, .h = {}, .y = sum, .models = from.models};
}

void Runner::backward(const Statement& s) {
  auto loss = graph(s.slot).y;
  if (s.other >= 0) loss = loss + graph(s.other).y;
  loss.backward({}, s.flag);
  for (int slot : {s.slot, s.other})
    if (slot >= 0 && graph(slot).x.is_leaf()) record(s, graph(slot).x.grad());
}

Tensor Runner::loss_that_throws(const Statement& s, bool throws) {
  const int throws_at = throws && s.flag ? s.node : -1;
  auto h = net(s.model).modules[0]->forward(input(s).requires_grad_(),
                                            {rank, s.seed, /*updates_buffers=*/false, &pause, throws_at});
  if (throws && !s.flag) throw Planned("in forward");
  return loss_of(h);
}

uint32_t Runner::models_of(const Statement& s) const {
  uint32_t models = graphs_[static_cast<size_t>(s.slot)].models;
  if (s.other >= 0) models |= graphs_[static_cast<size_t>(s.other)].models;
  return models;
}

void Runner::record(const Statement& s, Value value) {
  value.statement = s.number;
  value.rank = rank;
  value.item = !values.empty() && values.back().statement == s.number ? values.back().item + 1 : 0;
  values.push_back(std::move(value));
}

Tensor whole_operand(const Statement& s, at::IntArrayRef sizes, const Tensor& parameter) {
  const auto numbers = torch::arange(c10::multiply_integers(sizes), torch::kDouble);
  return torch::cos(numbers * 0.7 + s.value).to(parameter.scalar_type()).view(sizes);
}

void write_whole(const Statement& s, Tensor parameter, const Tensor& operand) {
  const torch::NoGradGuard no_grad;
  s.flag ? parameter.copy_(operand) : parameter.mul_(operand);
}

namespace {

template <class Torchs, class Fused, class Options>
std::unique_ptr<torch::optim::Optimizer> one_of(bool fused, std::vector<Tensor> tensors, const Options& options) {
  if (fused) return std::make_unique<Fused>(std::move(tensors), options);
  return std::make_unique<Torchs>(std::move(tensors), options);
}

}  // namespace

std::unique_ptr<torch::optim::Optimizer> make_optimizer(Optimizer kind, bool fused, std::vector<Tensor> tensors) {
  namespace torchs = torch::optim;
  fused = fused && is_fused(kind);
  switch (kind) {
    case Optimizer::kSgd:
    case Optimizer::kFusedSgd:
      return one_of<torchs::SGD, optim::SGD>(fused, std::move(tensors), torchs::SGDOptions(0.05).momentum(0.9));
    case Optimizer::kAdamW:
    case Optimizer::kFusedAdamW:
      return one_of<torchs::AdamW, optim::AdamW>(fused, std::move(tensors), torchs::AdamWOptions(0.01).eps(1e-3));
    case Optimizer::kFusedAdam:
      return one_of<torchs::Adam, optim::Adam>(fused, std::move(tensors), torchs::AdamOptions(0.01).eps(1e-3));
    case Optimizer::kFusedRmsprop:
      return one_of<torchs::RMSprop, optim::RMSprop>(fused, std::move(tensors),
                                                     torchs::RMSpropOptions(0.01).alpha(0.5).eps(1e-3));
    case Optimizer::kFusedAdagrad:
      return one_of<torchs::Adagrad, optim::Adagrad>(
          fused, std::move(tensors), torchs::AdagradOptions(0.05).initial_accumulator_value(0.1).eps(1e-3));
  }
  throw std::logic_error("no such optimizer");
}

}  // namespace fsdp::test::fuzz
