#include "program_fuzz/run.h"

#include <fsdp/error.h>
#include <fsdp/norms.h>
#include <fsdp/parameters.h>
#include <torch/torch.h>

#include <algorithm>
#include <sstream>

namespace fsdp::test::fuzz {

using torch::Tensor;

namespace {

Tensor loss_of(const Tensor& h) { return h.square().mean(); }

}  // namespace

double tolerance_of(const Model& model) {
  double most = model.is_mixed ? 1e-4 : 0;
  for (const auto& node : model.nodes)
    most = std::max(most, node.dtype == torch::kBFloat16 ? 5e-2 : node.dtype == torch::kFloat ? 1e-4 : 1e-6);
  return most;
}

void Rank::forward(const Statement& s) {
  if (s.kind == Kind::kEvaluate) {
    const torch::NoGradGuard no_grad;
    return record(s, apply(s, input(s), call(s)));
  }
  Graph made{.x = s.other >= 0 ? graph(s.other).h : input(s).requires_grad_(s.flag), .models = 1U << s.model};
  if (s.other >= 0) made.models |= graph(s.other).models;
  made.h = apply(s, made.x, call(s));
  made.y = loss_of(made.h);
  record(s, made.y);
  graph(s.slot) = made;
}

void Rank::follow(const Statement& s, const Tensor& h) {
  const auto& from = graph(s.other);
  const Graph made{.x = from.x, .h = h, .y = loss_of(h), .models = from.models};
  record(s, made.y);
  graph(s.slot) = made;
}

std::vector<Tensor> Rank::inputs_of_grad(const Statement& s) {
  std::vector<Tensor> inputs{graph(s.slot).x};
  if (s.node >= 0)
    for (const auto& parameter : module(s).parameters(/*recurse=*/false))
      if (parameter.requires_grad()) inputs.push_back(parameter);
  return inputs;
}

void Rank::take_gradients(const Statement& s, std::span<const Tensor> gradients) {
  const auto& from = graph(s.slot);
  auto sum = torch::zeros({}, torch::kDouble);
  for (const auto& gradient : gradients) {
    record(s, gradient);
    if (gradient.defined()) sum = sum + gradient.to(torch::kDouble).square().sum();
  }
  if (s.other >= 0) graph(s.other) = {.x = from.x, .h = {}, .y = sum, .models = from.models};
}

void Rank::record_input_gradients(const Statement& s) {
  for (int slot : {s.slot, s.other})
    if (slot >= 0 && graph(slot).x.is_leaf()) record(s, graph(slot).x.grad());
}

Tensor Rank::loss_that_throws(const Statement& s, bool throws) {
  auto how = call(s);
  how.updates_buffers = false;
  how.throws_at = throws && s.flag ? s.node : -1;
  const auto h = net(s).modules[0]->forward(input(s).requires_grad_(), how);
  if (throws && !s.flag) throw Planned("in forward");
  return loss_of(h);
}

bool Rank::has_gradients(const Statement& s) {
  return std::ranges::any_of(net(s).parameters, [](const NetParameter& parameter) {
    return !parameter.is_ignored && parameter.tensor.grad().defined();
  });
}

void Rank::record(const Statement& s, Value value) {
  value.statement = s.number;
  value.rank = number;
  value.item = !values.empty() && values.back().statement == s.number ? values.back().item + 1 : 0;
  values.push_back(std::move(value));
}

void Rank::record_rows(const Statement& s, const NetParameter& parameter, const Tensor& rows) {
  auto value = value_of(rows);
  if (!parameter.is_ignored) {
    const auto held = local_rows(parameter.tensor);
    const auto row = rows.defined() && rows.dim() > 0 ? c10::multiply_integers(rows.sizes().slice(1)) : 1;
    value.is_rows = true;
    value.first = held.first * row;
    value.count = held.count * row;
  }
  record(s, std::move(value));
}

std::vector<Value> Run::run() {
  run_list(program_.statements);
  for (int model = 0; model < kModels; ++model) {
    const Statement end{.model = model, .number = static_cast<int>(in_order(program_).size())};
    if (!ranks_[0]->of(end).net) continue;
    on_ranks(1U << model, [&](Rank& rank) { compare_rows(rank, end); });
    on_ranks(1U << model, [&](Rank& rank) { compare_gradients(rank, end); });
  }
  std::vector<Value> values;
  for (auto& rank : ranks_) std::move(rank->values.begin(), rank->values.end(), std::back_inserter(values));
  return values;
}

void Run::run_list(const std::vector<Statement>& statements) {
  for (const auto& statement : statements) {
    begin(statement);
    execute(statement);
  }
}

int Run::scope_of(const Statement& s) {
  const auto covers = [&](int open) { return is_within(program_.model(s), s.node, open); };
  if (std::ranges::any_of(state(s).scopes, covers)) return -1;
  return s.kind != Kind::kScope && s.entry == Entry::kScope ? s.at : s.node;
}

std::unique_ptr<torch::optim::Optimizer> Run::make_optimizer(const Statement& s, std::vector<Tensor> tensors) {
  const auto& info = info_of(program_.model(s).optimizer);
  return is_sharded_ ? info.make(std::move(tensors)) : info.make_torchs(std::move(tensors));
}

void Run::on_ranks(uint32_t models, const std::function<void(Rank&)>& run) {
  for (auto& rank : ranks_) {
    const size_t before = rank->values.size();
    run(*rank);
    for (size_t i = before; i < rank->values.size(); ++i) rank->values[i].tolerance = tolerance_of_all(models);
  }
}

double Run::tolerance_of_all(uint32_t models) const {
  double most = 0;
  for (size_t m = 0; m < kModels; ++m)
    if ((models & (1U << m)) != 0) most = std::max(most, states_[m].tolerance);
  return most;
}

uint32_t Run::models_of(const Statement& s) {
  return ranks_[0]->graph(s.slot).models | (s.other >= 0 ? ranks_[0]->graph(s.other).models : 0);
}

// LibTorch rounds a bf16 multiply-add differently at the end of a tensor, and rows end at other places than whole
// tensors.
void Run::note_rounding_of_step(const Statement& s) {
  const auto& model = program_.model(s);
  if (info_of(model.optimizer).is_fused || tolerance_of(model) > 1e-2) note_rounding(s, tolerance_of(model));
}

void Run::execute(const Statement& s) {
  const uint32_t model = 1U << s.model;
  switch (s.kind) {
    case Kind::kMake:
      state(s) = {.scopes = {}, .tolerance = program_.model(s).is_mixed ? tolerance_of(program_.model(s)) : 0};
      for (auto& rank : ranks_) rank->of(s) = {std::make_unique<Net>(program_, program_.model(s), is_sharded_), {}, {}};
      made(s);
      for (auto& rank : ranks_) rank->of(s).optimizer = make_optimizer(s, rank->net(s).tensors());
      return;
    case Kind::kDrop:
      will_drop(s);
      for (auto& rank : ranks_) rank->of(s) = {};
      return;
    case Kind::kScope:
      return within(s, [&] {
        state(s).scopes.push_back(s.node);
        run_list(s.body);
        state(s).scopes.pop_back();
      });
    case Kind::kNoSync:
      return run_body(s);
    case Kind::kLocalRows:
      state(s).has_local_rows = true;
      run_body(s);
      state(s).has_local_rows = false;
      return;
    case Kind::kForward: {
      const uint32_t models = model | (s.other >= 0 ? ranks_[0]->graph(s.other).models : 0);
      within(s, [&] { on_ranks(models, [&](Rank& rank) { rank.forward(s); }); });
      if (!ranks_[0]->net(s).buffers.empty()) note_rounding(s, tolerance_of_all(models));
      return;
    }
    case Kind::kEvaluate:
      return within(s, [&] { on_ranks(model, [&](Rank& rank) { rank.forward(s); }); });
    case Kind::kMap:
    case Kind::kAttend:
      return exchange(s);
    case Kind::kGrad:
      return grad(s);
    case Kind::kForget:
      for (auto& rank : ranks_) rank->graph(s.slot) = {};
      return;
    case Kind::kZeroGrad:
      for (auto& rank : ranks_) rank->of(s).optimizer->zero_grad(s.flag);
      return;
    case Kind::kStep:
      if (skips_writes()) return;
      for (auto& rank : ranks_) rank->of(s).optimizer->step();
      return note_rounding_of_step(s);
    case Kind::kWriteRows:
    case Kind::kWriteWhole: {
      const torch::NoGradGuard no_grad;
      if (skips_writes()) return;
      return within(s, [&] {
        for (auto& rank : ranks_)
          for (auto& tensor : rank->net(s).tensors()) {
            if (s.kind == Kind::kWriteRows) {
              tensor.mul_(s.value);
              continue;
            }
            const auto operand = whole_operand(global_sizes(tensor), s.value, tensor.scalar_type());
            s.flag ? tensor.copy_(operand) : tensor.mul_(operand);
          }
      });
    }
    case Kind::kByHand:
      if (skips_writes()) return;
      note_rounding(s, tolerance_of(program_.model(s)));
      return on_ranks(model, [&](Rank& rank) { by_hand(rank, s); });
    case Kind::kWriteOneRow:
      if (!skips_writes()) on_ranks(model, [&](Rank& rank) { write_one_row(rank, s); });
      return;
    case Kind::kSummon:
      return on_ranks(model, [&](Rank& rank) { summon(rank, s); });
    case Kind::kStepInBackward:
      for (auto& rank : ranks_) {
        rank->of(s).optimizer->zero_grad();
        rank->of(s).steppers.erase(s.node);
        if (s.flag) rank->of(s).steppers[s.node] = make_optimizer(s, rank->net(s).owned_by(s.node));
      }
      return execute_otherwise(s);
    case Kind::kFreeze:
      for (auto& rank : ranks_)
        for (auto& parameter : rank->module(s).parameters(/*recurse=*/false)) parameter.set_requires_grad(!s.flag);
      return;
    case Kind::kFullTensors:
      return on_ranks(model, [&](Rank& rank) {
        for (const auto& parameter : rank.net(s).parameters) rank.record(s, full_tensor(parameter.tensor));
      });
    case Kind::kSave:
      return on_ranks(model, [&](Rank& rank) { save(rank, s); });
    case Kind::kCompareRows:
      return on_ranks(model, [&](Rank& rank) { compare_rows(rank, s); });
    case Kind::kCompareGradients:
      return on_ranks(model, [&](Rank& rank) { compare_gradients(rank, s); });
    default:
      return execute_otherwise(s);
  }
}

// The collective sums over ranks in another order than autograd does in the unsharded run's joined graph.
void Run::exchange(const Statement& s) {
  const uint32_t models = ranks_[0]->graph(s.other).models;
  for (int m = 0; m < kModels; ++m)
    if ((models & (1U << m)) != 0) note_rounding({.model = m}, tolerance_of(item(program_.models, m)));
  const auto made = exchanged(s);
  on_ranks(models, [&, next = made.begin()](Rank& rank) mutable { rank.follow(s, *next++); });
}

// Takes the gradients of the sum of all ranks' losses, because the graphs of ranks may depend on each other.
void Run::grad(const Statement& s) {
  std::vector<Tensor> losses, inputs;
  std::vector<size_t> ends;
  for (auto& rank : ranks_) {
    losses.push_back(rank->graph(s.slot).y);
    const auto own = rank->inputs_of_grad(s);
    inputs.insert(inputs.end(), own.begin(), own.end());
    ends.push_back(inputs.size());
  }
  const bool creates = s.other >= 0;
  const auto all = torch::autograd::grad(losses, inputs, {}, s.flag || creates, creates, /*allow_unused=*/true);
  size_t first = 0;
  on_ranks(ranks_[0]->graph(s.slot).models, [&, end = ends.begin()](Rank& rank) mutable {
    rank.take_gradients(s, std::span(all).subspan(first, *end - first));
    first = *end++;
  });
}

void Run::run_backward(const Statement& s) {
  std::vector<Tensor> losses;
  for (auto& rank : ranks_)
    losses.push_back(s.other < 0 ? rank->graph(s.slot).y : rank->graph(s.slot).y + rank->graph(s.other).y);
  torch::autograd::backward(losses, {}, s.flag);
  on_ranks(models_of(s), [&](Rank& rank) { rank.record_input_gradients(s); });
}

// Executes the same code for rows and for whole tensors. Its results are continuous in its inputs, so rounding errors
// stay small.
void Run::by_hand(Rank& rank, const Statement& s) {
  const torch::NoGradGuard no_grad;
  for (const auto& [tensor, is_ignored, owner] : rank.net(s).parameters) {
    if (is_ignored || !tensor.grad().defined()) continue;
    auto p = tensor, g = tensor.grad();
    const auto sizes = global_sizes(p);
    std::vector<int64_t> in_rows;  // the dims of one row
    for (size_t dim = 1; dim < sizes.size(); ++dim) in_rows.push_back(static_cast<int64_t>(dim));
    switch (s.seed % kHands) {
      case 0: {  // as LAMB does
        const auto update = g.clamp(-1, 1) + 0.1 * p;
        const auto norms = fsdp::norms({p, update});
        p.add_(update, -s.value * norms[0] / (norms[1] + 1));
        break;
      }
      case 1: {  // as adaptive clipping does
        const auto longest = fsdp::sum(p * p, in_rows, true).sqrt() * s.value + 0.01;
        g.mul_((longest / (fsdp::sum(g.pow(2), in_rows, true).sqrt() + 0.01)).clamp_max(1));
        break;
      }
      case 2: {  // as Adafactor does
        if (sizes.size() != 2) continue;
        const auto squares = g * g + 1;
        const auto rows = fsdp::sum(squares, {1}, true), columns = fsdp::sum(squares, {0}, true);
        p.sub_(s.value * g / (rows.sqrt() * (columns + 1).sqrt()));
        break;
      }
      case 3:  // needs whole tensors, as Muon does
        if (sizes.empty()) continue;
        p.sub_(full_tensor(g.lerp(p, 0.1)).cumsum(0) * (0.01 * s.value));
        break;
      default: {
        const double squares = fsdp::sum({g.pow(2)});
        rank.record(s, torch::scalar_tensor(squares, torch::kDouble));
        rank.record(s, torch::scalar_tensor(fsdp::any({g.abs() > 1e9}) ? 1 : 0));
        rank.record(s, torch::scalar_tensor(fsdp::all({(g * 2).isfinite(), p.detach().isfinite()}) ? 1 : 0));
        double own = squares;
        try {
          own = g.pow(2).to(torch::kDouble).sum().item<double>();
        } catch (const UsageError&) {  // thrown for rows, because the sum would cover this rank's rows only
        }
        rank.record(s, torch::scalar_tensor(own, torch::kDouble));
      }
    }
  }
}

void Run::write_one_row(Rank& rank, const Statement& s) {
  const torch::NoGradGuard no_grad;
  auto tensor = rank.row_parameter(s);
  const auto held = local_rows(tensor);
  const int64_t row = row_of(s, global_sizes(tensor)) - held.first;
  if (row < 0 || row >= held.count) return;
  within(s, [&] {
    auto written = tensor.dim() == 0 ? tensor : tensor[row];
    if (s.flag) written = torch::from_blob(written.mutable_data_ptr(), written.sizes(), tensor.scalar_type());
    written.mul_(s.value);
  });
}

void Run::summon(Rank& rank, const Statement& s) {
  const torch::NoGradGuard no_grad;
  within(s, [&] {
    for (auto& parameter : rank.net(s).parameters) {
      if (parameter.is_ignored) continue;
      rank.record(s, parameter.tensor * 1.0);
      if (s.flag) parameter.tensor.mul_(s.value);
    }
  });
}

void Run::save(Rank& rank, const Statement& s) {
  std::stringstream file;
  std::vector<Tensor> rows;  // copies, because LibTorch may not write the rows themselves outside LocalRows
  for (const auto& tensor : rank.net(s).tensors()) rows.push_back(tensor.detach().clone());
  torch::save(rows, file);
  std::vector<Tensor> loaded;
  torch::load(loaded, file);
  for (size_t i = 0; i < loaded.size(); ++i) rank.record_rows(s, rank.net(s).parameters[i], loaded[i].detach());
}

void Run::compare_rows(Rank& rank, const Statement& s) {
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : rank.net(s).parameters)
    rank.record_rows(s, parameter, parameter.tensor.detach().clone());
  for (const auto& buffer : rank.net(s).buffers) rank.record(s, buffer);
}

void Run::compare_gradients(Rank& rank, const Statement& s) {
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : rank.net(s).parameters) {
    auto gradient = parameter.tensor.grad();
    if (gradient.defined() && is_sharded_ && plant_ == Plant::kGradient && rank.number == 1) gradient = gradient + 1e-3;
    rank.record_rows(s, parameter, gradient);
  }
}

}  // namespace fsdp::test::fuzz
