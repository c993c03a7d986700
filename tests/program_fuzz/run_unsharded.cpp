#include <torch/torch.h>

#include <algorithm>
#include <map>

#include "program_fuzz/run.h"
#include "program_fuzz/runner.h"

namespace fsdp::test::fuzz {
namespace {

using torch::Tensor;

// Of numbers that are computed from the same ones in another order.
double tolerance_of(const Model& model) {
  double most = model.is_mixed ? 1e-4 : 0;
  for (const auto& node : model.nodes) {
    const double of_node = node.dtype == c10::ScalarType::BFloat16 ? 5e-2
                           : node.dtype == c10::ScalarType::Float  ? 1e-4
                                                                   : 1e-6;
    most = std::max(most, of_node);
  }
  return most;
}

// LibTorch rounds a sum of a multiple in bf16 otherwise where a tensor ends, and rows end elsewhere.
bool has_bfloat16(const Model& model) {
  return std::ranges::any_of(model.nodes, [](const auto& node) { return node.dtype == c10::ScalarType::BFloat16; });
}

// What all_reduce and its kin make of the numbers of all ranks.
Tensor metric_of(const Statement& s, const std::vector<Tensor>& numbers) {
  if (s.kind == Kind::kAllGather) return torch::stack(numbers);
  if (s.kind == Kind::kBroadcast) return numbers[static_cast<size_t>(s.rank)];
  const bool is_maximum = s.kind == Kind::kAllReduce && s.flag;
  auto result = numbers[0];
  for (size_t rank = 1; rank < numbers.size(); ++rank)
    result = is_maximum ? torch::maximum(result, numbers[rank]) : result + numbers[rank];
  return s.kind == Kind::kMean ? result.flatten()[0] / static_cast<double>(numbers.size()) : result;
}

class UnshardedRun {
 public:
  UnshardedRun(const Program& program, Plant plant) : program_(program), plant_(plant) {
    for (int rank = 0; rank < program.world_size; ++rank) ranks_.push_back(std::make_unique<Rank>(program, rank));
  }

  std::vector<Value> run() {
    run_list(program_.statements);
    for (int model = 0; model < kModels; ++model) {
      if (!exists(model)) continue;
      const Statement end{.model = model, .number = static_cast<int>(in_order(program_).size())};
      compare_rows(end);
      compare_gradients(end);
    }
    std::vector<Value> values;
    for (auto& rank : ranks_)
      std::move(rank->runner.values.begin(), rank->runner.values.end(), std::back_inserter(values));
    return values;
  }

 private:
  struct Rank {
    Rank(const Program& program, int rank) : runner(program, rank) {}
    void record_parameters(const Statement& s) {
      for (const auto& parameter : runner.net(s.model).parameters) runner.record(s, parameter.tensor);
    }
    Runner runner;
    std::array<std::unique_ptr<torch::optim::Optimizer>, kModels> optimizers;
    std::array<std::map<int, std::unique_ptr<torch::optim::Optimizer>>, kModels> steppers;  // by group node
    // By model and parameter: gradients that wait for a backward with synchronisation, or for the sum.
    std::array<std::vector<Tensor>, kModels> waiting;
  };
  struct ModelState {
    bool no_sync = false;
    std::map<int, double> divisors, most;  // by group node; of kClampReduced
    std::vector<int> scopes;               // nodes of their groups
  };
  ModelState& state(int model) { return states_[static_cast<size_t>(model)]; }
  bool exists(int model) const { return ranks_[0]->runner.nets[static_cast<size_t>(model)] != nullptr; }

  void run_list(const std::vector<Statement>& statements) {
    for (const auto& statement : statements) execute(statement);
  }

  // All values of the statement have the same bits unless one of the models that it depends on was rounded otherwise.
  template <class F>
  void on_ranks(uint32_t models, F&& run) {
    for (auto& rank : ranks_) {
      const size_t before = rank->runner.values.size();
      run(*rank);
      for (size_t i = before; i < rank->runner.values.size(); ++i)
        rank->runner.values[i].tolerance = tolerance_of_all(models);
    }
  }
  // `models`: bits.
  double tolerance_of_all(uint32_t models) const {
    double most = 0;
    for (size_t m = 0; m < kModels; ++m)
      if ((models & (1U << m)) != 0) most = std::max(most, tolerances_[m]);
    return most;
  }
  void note_rounding(size_t m, double tolerance) { tolerances_[m] = std::max(tolerances_[m], tolerance); }
  void note_rounding_of_step(size_t m) {
    const auto& model = program_.models[m];
    if (is_fused(model.optimizer) || has_bfloat16(model)) note_rounding(m, tolerance_of(model));
  }
  uint32_t models_of(const Statement& s) const { return ranks_[0]->runner.models_of(s); }

  void execute(const Statement& s);
  void make(const Statement& s);
  void backward(const Statement& s);
  void sum_gradients(int model);
  Tensor sum_of(int model, size_t parameter);
  void step_in_backward(const Statement& s);
  void open_scope(int model, int node);
  void clip(const Statement& s);
  void scaled_step(const Statement& s);
  void write(const Statement& s);
  void summon(const Statement& s);
  void throw_and_reset(const Statement& s);
  void compare_rows(const Statement& s);
  void compare_gradients(const Statement& s);
  void metric(const Statement& s);

  const Program& program_;
  const Plant plant_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::array<ModelState, kModels> states_;
  std::array<double, kModels> tolerances_{};  // how far their numbers may be from those of the sharded run
};

void UnshardedRun::execute(const Statement& s) {
  const uint32_t model = 1U << s.model;
  const auto m = static_cast<size_t>(s.model);
  switch (s.kind) {
    case Kind::kMake:
      return make(s);
    case Kind::kDrop:
      for (auto& rank : ranks_) rank->runner.nets[m].reset();
      return;
    case Kind::kScope:
      open_scope(s.model, s.node);
      state(s.model).scopes.push_back(s.node);
      run_list(s.body);
      state(s.model).scopes.pop_back();
      return;
    case Kind::kLocalRows:
      return run_list(s.body);
    case Kind::kNoSync:
      state(s.model).no_sync = true;
      run_list(s.body);
      state(s.model).no_sync = false;
      return;
    case Kind::kForward: {
      open_scope(s.model, s.entry == Entry::kScope ? s.at : s.node);
      const uint32_t models = model | (s.other >= 0 ? ranks_[0]->runner.graph(s.other).models : 0);
      on_ranks(models, [&](Rank& rank) { rank.runner.forward(s); });
      if (!ranks_[0]->runner.net(s.model).buffers.empty()) note_rounding(m, tolerance_of_all(models));
      return;
    }
    case Kind::kEvaluate:
      if (s.entry == Entry::kScope) open_scope(s.model, s.at);  // as it opens, gradients are recorded still
      return on_ranks(model, [&](Rank& rank) { rank.runner.evaluate(s); });
    case Kind::kGrad:
      return on_ranks(ranks_[0]->runner.graph(s.slot).models, [&](Rank& rank) { rank.runner.grad(s); });
    case Kind::kBackward:
      return backward(s);
    case Kind::kForget:
      for (auto& rank : ranks_) rank->runner.graph(s.slot) = {};
      return;
    case Kind::kZeroGrad:
      for (auto& rank : ranks_) rank->optimizers[m]->zero_grad(s.flag);
      return;
    case Kind::kStep:
      if (plant_ == Plant::kSkip) return;
      for (auto& rank : ranks_) rank->optimizers[m]->step();
      return note_rounding_of_step(m);
    case Kind::kScaledStep:
      return scaled_step(s);
    case Kind::kWriteRows:
    case Kind::kWriteOneRow:
    case Kind::kWriteWhole:
      return write(s);
    case Kind::kSummon:
      return summon(s);
    case Kind::kDivideFactor:
      state(s.model).divisors[s.node] = s.value;
      return;
    case Kind::kClampReduced:
      state(s.model).most[s.node] = s.flag ? s.value : INFINITY;
      return;
    case Kind::kStepInBackward:
      return step_in_backward(s);
    case Kind::kFreeze:
      for (auto& rank : ranks_) rank->runner.freeze(s);
      return;
    case Kind::kClip:
      return clip(s);
    case Kind::kFullTensors:
    case Kind::kSave:
      return on_ranks(model, [&](Rank& rank) { rank.record_parameters(s); });
    case Kind::kCompareRows:
      return compare_rows(s);
    case Kind::kThrow:
      return throw_and_reset(s);
    case Kind::kCompareGradients:
      return compare_gradients(s);
    case Kind::kAllReduce:
    case Kind::kAllGather:
    case Kind::kBroadcast:
    case Kind::kMean:
      return metric(s);
    case Kind::kUnshard:
    case Kind::kReshard:
    case Kind::kKeepAfterForward:
    case Kind::kKeepAfterBackward:
    case Kind::kKeepInBackward:
    case Kind::kReduceUnused:
    case Kind::kForwardPrefetch:
    case Kind::kBackwardPrefetch:
    case Kind::kBarrier:
      return;
  }
}

void UnshardedRun::make(const Statement& s) {
  const auto m = static_cast<size_t>(s.model);
  const auto& model = program_.models[m];
  for (auto& rank : ranks_) {
    auto& net = rank->runner.nets[m];
    net = std::make_unique<Net>(program_, model, /*recomputes=*/false);
    rank->optimizers[m] = make_optimizer(model.optimizer, /*fused=*/false, net->tensors());
    rank->steppers[m].clear();
    rank->waiting[m].assign(net->parameters.size(), Tensor());
  }
  state(s.model) = {};
  tolerances_[m] = model.is_mixed ? tolerance_of(model) : 0;
}

// Each rank's gradients apart from those that are there already; then their sums.
void UnshardedRun::backward(const Statement& s) {
  const uint32_t models = models_of(s);
  const double tolerance = tolerance_of_all(models);
  for (size_t m = 0; m < kModels; ++m)
    if ((models & (1U << m)) != 0) note_rounding(m, tolerance);
  on_ranks(models, [&](Rank& rank) {
    std::array<std::vector<Tensor>, kModels> before;
    const auto for_each = [&](const auto& visit) {
      for (size_t m = 0; m < kModels; ++m)
        for (size_t i = 0; rank.runner.nets[m] && i < rank.runner.nets[m]->parameters.size(); ++i)
          if (!rank.runner.nets[m]->parameters[i].is_ignored) visit(m, i, rank.runner.nets[m]->parameters[i].tensor);
    };
    for_each([&](size_t m, size_t, Tensor& tensor) {
      before[m].push_back(tensor.grad());
      tensor.mutable_grad() = Tensor();
    });
    rank.runner.backward(s);
    std::array<size_t, kModels> next{};
    for_each([&](size_t m, size_t i, Tensor& tensor) {
      const auto gradient = std::exchange(tensor.mutable_grad(), before[m][next[m]++]);
      auto& waiting = rank.waiting[m][i];
      if (gradient.defined()) waiting = waiting.defined() ? waiting + gradient : gradient;
    });
  });
  for (int model = 0; model < kModels; ++model)
    if ((models & (1U << model)) != 0 && exists(model) && !state(model).no_sync) sum_gradients(model);
}

// Over the ranks of a replica in their order, then over the replicas in theirs.
Tensor UnshardedRun::sum_of(int model, size_t parameter) {
  const auto m = static_cast<size_t>(model);
  const int owner = ranks_[0]->runner.net(model).owners[parameter];
  const auto shards = static_cast<size_t>(shards_of(program_, options_of(program_.models[m], owner)));
  const auto add = [](Tensor& sum, const Tensor& term) {
    if (term.defined()) sum = sum.defined() ? sum + term : term;
  };
  Tensor sum;
  for (size_t first = 0; first < ranks_.size(); first += shards) {
    Tensor of_replica;
    for (size_t rank = first; rank < first + shards; ++rank)
      add(of_replica, std::exchange(ranks_[rank]->waiting[m][parameter], Tensor()));
    add(sum, of_replica);
  }
  if (!sum.defined()) return sum;
  const auto setting = [&](const std::map<int, double>& settings, double otherwise) {
    const auto set = settings.find(owner);
    return set == settings.end() ? otherwise : set->second;
  };
  const double most = setting(state(model).most, INFINITY);
  return (sum * (1.0 / setting(state(model).divisors, program_.world_size))).clamp_(-most, most);
}

void UnshardedRun::sum_gradients(int model) {
  const torch::NoGradGuard no_grad;
  const auto m = static_cast<size_t>(model);
  for (size_t i = 0; i < ranks_[0]->runner.net(model).parameters.size(); ++i) {
    const auto sum = sum_of(model, i);
    if (!sum.defined()) continue;
    for (auto& rank : ranks_) {
      auto& grad = rank->runner.net(model).parameters[i].tensor.mutable_grad();
      grad = grad.defined() ? grad + sum : sum.clone();
    }
  }
  for (auto& rank : ranks_)
    for (auto& [node, stepper] : rank->steppers[m]) {
      stepper->step();
      stepper->zero_grad();
    }
  if (!ranks_[0]->steppers[m].empty()) note_rounding_of_step(m);
}

void UnshardedRun::step_in_backward(const Statement& s) {
  const auto m = static_cast<size_t>(s.model);
  for (auto& rank : ranks_) {
    rank->optimizers[m]->zero_grad();
    rank->steppers[m].erase(s.node);
    if (s.flag)
      rank->steppers[m][s.node] =
          make_optimizer(program_.models[m].optimizer, /*fused=*/false, rank->runner.net(s.model).owned_by(s.node));
  }
}

// Buffers of rank 0 (FullyShardOptions::broadcast_buffers), if no scope around this one is open.
void UnshardedRun::open_scope(int model, int node) {
  const auto& spec = program_.models[static_cast<size_t>(model)];
  if (options_of(spec, node).strategy != Strategy::kReplicate) return;
  if (std::ranges::any_of(state(model).scopes, [&](int open) { return is_within(spec, node, open); })) return;
  const torch::NoGradGuard no_grad;
  const auto buffers_of = [&](Rank& rank) {
    return rank.runner.net(model).modules[static_cast<size_t>(node)]->buffers();
  };
  const auto values = buffers_of(*ranks_[0]);
  for (auto& rank : ranks_) {
    auto buffers = buffers_of(*rank);
    for (size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(values[i]);
  }
}

void UnshardedRun::clip(const Statement& s) {
  const torch::NoGradGuard no_grad;
  note_rounding(static_cast<size_t>(s.model), tolerance_of(program_.models[static_cast<size_t>(s.model)]));
  on_ranks(1U << s.model, [&](Rank& rank) {
    std::vector<Tensor> gradients;
    for (const auto& parameter : rank.runner.net(s.model).parameters)
      if (!parameter.is_ignored && parameter.tensor.grad().defined()) gradients.push_back(parameter.tensor.grad());
    double squares = 0;
    for (const auto& gradient : gradients) squares += gradient.to(torch::kDouble).square().sum().item<double>();
    const double norm = std::sqrt(squares);
    for (auto& gradient : gradients) gradient.mul_(std::min(1.0, s.value / (norm + 1e-6)));
    rank.runner.record(s, torch::scalar_tensor(norm, torch::kDouble));
  });
}

void UnshardedRun::scaled_step(const Statement& s) {
  for (auto& rank : ranks_) {
    if (!rank->runner.has_gradients(s)) return;
    auto& optimizer = *rank->optimizers[static_cast<size_t>(s.model)];
    const bool is_infinite = s.flag && rank->runner.row_parameter(s).grad().defined();
    if (!is_infinite && plant_ != Plant::kSkip) optimizer.step();
    optimizer.zero_grad();
  }
  note_rounding_of_step(static_cast<size_t>(s.model));
}

void UnshardedRun::write(const Statement& s) {
  const torch::NoGradGuard no_grad;
  if (plant_ == Plant::kSkip) return;
  for (auto& rank : ranks_) {
    if (s.kind == Kind::kWriteOneRow) {
      auto tensor = rank->runner.row_parameter(s);
      (tensor.dim() == 0 ? tensor : tensor[row_of(s, tensor.sizes())]).mul_(s.value);
      continue;
    }
    for (auto& tensor : rank->runner.net(s.model).tensors())
      s.kind == Kind::kWriteRows ? void(tensor.mul_(s.value))
                                 : write_whole(s, tensor, whole_operand(s, tensor.sizes(), tensor));
  }
}

void UnshardedRun::summon(const Statement& s) {
  const torch::NoGradGuard no_grad;
  on_ranks(1U << s.model, [&](Rank& rank) {
    for (auto& parameter : rank.runner.net(s.model).parameters) {
      if (parameter.is_ignored) continue;
      rank.runner.record(s, parameter.tensor);
      if (s.flag) parameter.tensor.mul_(s.value);
    }
  });
}

void UnshardedRun::throw_and_reset(const Statement& s) {
  open_scope(s.model, 0);
  for (auto& rank : ranks_) {
    rank->runner.forget_graphs();
    for (auto& waiting : rank->waiting[static_cast<size_t>(s.model)]) waiting = Tensor();
    rank->optimizers[static_cast<size_t>(s.model)]->zero_grad();
  }
}

void UnshardedRun::compare_rows(const Statement& s) {
  on_ranks(1U << s.model, [&](Rank& rank) {
    rank.record_parameters(s);
    for (const auto& buffer : rank.runner.net(s.model).buffers) rank.runner.record(s, buffer);
  });
}

void UnshardedRun::compare_gradients(const Statement& s) {
  on_ranks(1U << s.model, [&](Rank& rank) {
    for (const auto& parameter : rank.runner.net(s.model).parameters) rank.runner.record(s, parameter.tensor.grad());
  });
}

void UnshardedRun::metric(const Statement& s) {
  std::vector<Tensor> numbers;
  for (const auto& rank : ranks_) numbers.push_back(rank->runner.numbers(s));
  const auto result = metric_of(s, numbers);
  on_ranks(0, [&](Rank& rank) { rank.runner.record(s, result); });
}

}  // namespace

std::vector<Value> run_unsharded(const Program& program, Plant plant) { return UnshardedRun(program, plant).run(); }

}  // namespace fsdp::test::fuzz
