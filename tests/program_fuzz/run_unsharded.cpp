#include <fsdp/sequence_parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>

#include "program_fuzz/exchange.h"
#include "program_fuzz/run.h"
#include "program_fuzz/stages.h"

namespace fsdp::test::fuzz {
namespace {

using torch::Tensor;

// Returns what all_reduce and similar statements compute from the numbers of all ranks.
Tensor metric_of(const Statement& s, const std::vector<Tensor>& numbers) {
  if (s.kind == Kind::kAllGather) return torch::stack(numbers);
  if (s.kind == Kind::kBroadcast) return item(numbers, s.rank);
  const bool is_maximum = s.kind == Kind::kAllReduce && s.flag;
  auto result = numbers[0];
  for (size_t rank = 1; rank < numbers.size(); ++rank)
    result = is_maximum ? torch::maximum(result, numbers[rank]) : result + numbers[rank];
  return s.kind == Kind::kMean ? result.flatten()[0] / static_cast<double>(numbers.size()) : result;
}

// Returns each rank's result of the collective, given the inputs of all ranks.
std::vector<Tensor> mapped(const Statement& s, const std::vector<Tensor>& given) {
  const auto ranks = static_cast<int64_t>(given.size());
  std::vector<Tensor> results;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto parts = [&] {  // returns the part for this rank from each rank's input
      std::vector<Tensor> all;
      for (const auto& one : given) all.push_back(one.chunk(ranks)[static_cast<size_t>(rank)]);
      return all;
    };
    const std::array<std::function<Tensor()>, kMaps> maps{
        [&] { return torch::stack(given).sum(0); }, [&] { return torch::cat(given); },
        [&] { return torch::stack(parts()).sum(0); }, [&] { return torch::cat(parts()); },
        [&] { return item(given, (rank + ranks - 1) % ranks) * 1; }};
    results.push_back(item(maps, s.seed % kMaps)());
  }
  return results;
}

// Computes the attention of the whole sequence with an explicit softmax.
std::vector<Tensor> attended(const Statement& s, const std::vector<Tensor>& given) {
  const auto ranks = static_cast<int64_t>(given.size());
  const bool is_head_tail = static_cast<SequenceMethod>(s.seed % kMethods) == SequenceMethod::kHeadTail && ranks > 1;
  const auto place = [&](int64_t rank,
                         int64_t half) {  // returns the places in the sequence of one half of a rank's tokens
    return is_head_tail ? (half == 0 ? rank : 2 * ranks - 1 - rank) : 2 * rank + half;
  };
  std::vector<Tensor> sequence(static_cast<size_t>(2 * ranks));
  for (int64_t rank = 0; rank < ranks; ++rank)
    for (int64_t half = 0; half < 2; ++half)
      item(sequence, place(rank, half)) = item(given, rank).chunk(2, 2)[static_cast<size_t>(half)];
  const auto query = torch::cat(sequence, 2), value = query + 1;
  auto scores = query.matmul(0.9 * query.transpose(2, 3)) / std::sqrt(static_cast<double>(query.size(3)));
  const auto later = torch::ones({query.size(2), query.size(2)}, torch::kBool).triu(1);
  if (s.flag) scores = scores.masked_fill(later, -INFINITY);
  const auto output = scores.softmax(3).matmul(value).chunk(2 * ranks, 2);
  std::vector<Tensor> results;
  for (int64_t rank = 0; rank < ranks; ++rank)
    results.push_back(torch::cat({item(output, place(rank, 0)), item(output, place(rank, 1))}, 2));
  return results;
}

void add(Tensor& sum, const Tensor& term) {
  if (term.defined()) sum = sum.defined() ? sum + term : term;
}

class UnshardedRun : public Run {
 public:
  UnshardedRun(const Program& program, Plant plant) : Run(program, plant, /*is_sharded=*/false) {
    for (int number = 0; number < program.world_size; ++number)
      ranks_.push_back(std::make_unique<Rank>(program, number));
  }

 private:
  struct Reduction {
    bool no_sync = false;
    std::map<int, double> divisors, most;  // keyed by group node; `most` holds the limits of kClampReduced
    // Gradients that wait for their sum or for a backward that synchronises, indexed by rank and parameter.
    std::vector<std::vector<Tensor>> waiting;
  };
  Reduction& reduction(const Statement& s) { return item(reductions_, s.model); }
  std::vector<Tensor>& waiting(const Statement& s, const Rank& rank) { return item(reduction(s).waiting, rank.number); }

  void within(const Statement& s, const std::function<void()>& body) override;
  void execute_otherwise(const Statement& s) override;
  void made(const Statement& s) override {
    reduction(s) = {};
    for (auto& rank : ranks_) reduction(s).waiting.emplace_back(rank->net(s).parameters.size());
  }
  std::vector<Tensor> exchanged(const Statement& s) override;
  void broadcast_buffers(const Statement& s, int node);
  void backward(const Statement& s);
  void sum_gradients(const Statement& s);
  Tensor sum_of(const Statement& s, size_t parameter);
  void clip(const Statement& s);
  void scaled_step(const Statement& s);

  std::array<Reduction, kModels> reductions_;
};

void UnshardedRun::within(const Statement& s, const std::function<void()>& body) {
  if (s.kind == Kind::kScope || s.kind == Kind::kForward) broadcast_buffers(s, scope_of(s));
  // A scope opens while gradients are enabled; a call of the handle opens it under NoGradGuard.
  if (s.kind == Kind::kEvaluate && s.entry == Entry::kScope) broadcast_buffers(s, scope_of(s));
  if (s.kind == Kind::kNoSync) reduction(s).no_sync = true;
  body();
  if (s.kind == Kind::kNoSync) reduction(s).no_sync = false;
}

void UnshardedRun::execute_otherwise(const Statement& s) {
  switch (s.kind) {
    case Kind::kBackward:
      return backward(s);
    case Kind::kScaledStep:
      return scaled_step(s);
    case Kind::kDivideFactor:
      reduction(s).divisors[s.node] = s.value;
      return;
    case Kind::kClampReduced:
      reduction(s).most[s.node] = s.flag ? s.value : INFINITY;
      return;
    case Kind::kClip:
      return clip(s);
    case Kind::kThrow:
      broadcast_buffers(s, 0);
      for (auto& rank : ranks_) {
        rank->graphs = {};
        for (auto& gradient : waiting(s, *rank)) gradient = Tensor();
        rank->of(s).optimizer->zero_grad();
      }
      return;
    case Kind::kAllReduce:
    case Kind::kAllGather:
    case Kind::kBroadcast:
    case Kind::kMean: {
      std::vector<Tensor> numbers;
      for (const auto& rank : ranks_) numbers.push_back(rank->input(s));
      return on_ranks(0, [&](Rank& rank) { rank.record(s, metric_of(s, numbers)); });
    }
    case Kind::kPipeline:
      for (auto& rank : ranks_)
        for (const auto& result : trained_whole(program_, s, rank->number)) {
          rank->record(s, result);
          rank->values.back().tolerance = 1e-9;
        }
      return;
    default:  // settings that change no numbers
      return;
  }
}

// Copies rank 0's buffers to the other ranks (FullyShardOptions::broadcast_buffers), as the opening of a scope of the
// node's group does. `node` is -1 if no scope opens.
void UnshardedRun::broadcast_buffers(const Statement& s, int node) {
  if (node < 0 || options_of(program_.model(s), node).strategy != Strategy::kReplicate) return;
  const torch::NoGradGuard no_grad;
  const auto buffers_of = [&](Rank& rank) { return item(rank.net(s).modules, node)->buffers(); };
  const auto values = buffers_of(*ranks_[0]);
  for (auto& rank : ranks_) {
    auto buffers = buffers_of(*rank);
    for (size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(values[i]);
  }
}

std::vector<Tensor> UnshardedRun::exchanged(const Statement& s) {
  const int axis = ranks_of_axis(program_, s);
  std::vector<Tensor> all;
  for (size_t first = 0; first < ranks_.size(); first += static_cast<size_t>(axis)) {
    std::vector<Exchange> exchanges;
    std::vector<Tensor> given;
    for (int rank = 0; rank < axis; ++rank) {
      exchanges.push_back({.ranks = axis, .rank = rank, .statement = s});
      given.push_back(exchanges.back().given(item(ranks_, first + static_cast<size_t>(rank))->graph(s.other).h));
    }
    const auto results = s.kind == Kind::kMap ? mapped(s, given) : attended(s, given);
    for (int rank = 0; rank < axis; ++rank) all.push_back(item(exchanges, rank).taken(item(results, rank)));
  }
  return all;
}

// Computes each rank's new gradients separately from those that exist already, and then sums them.
void UnshardedRun::backward(const Statement& s) {
  const uint32_t models = models_of(s);
  const double tolerance = tolerance_of_all(models);
  std::vector<Statement> reached;  // one statement for each model that still exists
  for (int m = 0; m < kModels; ++m) {
    const Statement of_model{.model = m};
    if ((models & (1U << m)) != 0) note_rounding(of_model, tolerance);
    if ((models & (1U << m)) != 0 && ranks_[0]->of(of_model).net) reached.push_back(of_model);
  }
  std::vector<std::pair<Tensor*, Tensor>> earlier;
  for (auto& rank : ranks_)
    for (const auto& model : reached)
      for (auto& parameter : rank->net(model).parameters)
        if (!parameter.is_ignored)
          earlier.emplace_back(&parameter.tensor, std::exchange(parameter.tensor.mutable_grad(), Tensor()));
  run_backward(s);
  auto next = earlier.begin();
  for (auto& rank : ranks_)
    for (const auto& model : reached)
      for (size_t i = 0; i < rank->net(model).parameters.size(); ++i) {
        if (rank->net(model).parameters[i].is_ignored) continue;
        add(waiting(model, *rank)[i], std::exchange(next->first->mutable_grad(), next->second));
        ++next;
      }
  for (const auto& model : reached)
    if (!reduction(model).no_sync) sum_gradients(model);
}

// Sums over the ranks of each replica in rank order, and then over the replicas in their order.
Tensor UnshardedRun::sum_of(const Statement& s, size_t parameter) {
  const int owner = ranks_[0]->net(s).parameters[parameter].owner;
  const auto shards = static_cast<size_t>(shards_of(program_, options_of(program_.model(s), owner)));
  Tensor sum;
  for (size_t first = 0; first < ranks_.size(); first += shards) {
    Tensor of_replica;
    for (size_t rank = first; rank < first + shards; ++rank)
      add(of_replica, std::exchange(waiting(s, *ranks_[rank])[parameter], Tensor()));
    add(sum, of_replica);
  }
  if (!sum.defined()) return sum;
  const auto setting = [&](const std::map<int, double>& settings, double otherwise) {
    const auto set = settings.find(owner);
    return set == settings.end() ? otherwise : set->second;
  };
  const double most = setting(reduction(s).most, INFINITY);
  return (sum * (1.0 / setting(reduction(s).divisors, program_.world_size))).clamp_(-most, most);
}

void UnshardedRun::sum_gradients(const Statement& s) {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < ranks_[0]->net(s).parameters.size(); ++i) {
    const auto sum = sum_of(s, i);
    if (!sum.defined()) continue;
    for (auto& rank : ranks_) {
      auto& grad = rank->net(s).parameters[i].tensor.mutable_grad();
      grad = grad.defined() ? grad + sum : sum.clone();
    }
  }
  for (auto& rank : ranks_)
    for (auto& [node, stepper] : rank->of(s).steppers) {
      stepper->step();
      stepper->zero_grad();
    }
  if (!ranks_[0]->of(s).steppers.empty()) note_rounding_of_step(s);
}

void UnshardedRun::clip(const Statement& s) {
  const torch::NoGradGuard no_grad;
  note_rounding(s, tolerance_of(program_.model(s)));
  on_ranks(1U << s.model, [&](Rank& rank) {
    std::vector<Tensor> gradients;
    for (const auto& parameter : rank.net(s).parameters)
      if (!parameter.is_ignored && parameter.tensor.grad().defined()) gradients.push_back(parameter.tensor.grad());
    double squares = 0;
    for (const auto& gradient : gradients) squares += gradient.to(torch::kDouble).square().sum().item<double>();
    const double norm = std::sqrt(squares);
    for (auto& gradient : gradients) gradient.mul_(std::min(1.0, s.value / (norm + 1e-6)));
    rank.record(s, torch::scalar_tensor(norm, torch::kDouble));
  });
}

void UnshardedRun::scaled_step(const Statement& s) {
  for (auto& rank : ranks_) {
    if (!rank->has_gradients(s)) return;
    const bool is_infinite = s.flag && rank->row_parameter(s).grad().defined();
    if (!is_infinite && !skips_writes()) rank->of(s).optimizer->step();
    rank->of(s).optimizer->zero_grad();
  }
  note_rounding_of_step(s);
}

}  // namespace

std::vector<Value> run_unsharded(const Program& program, Plant plant) { return UnshardedRun(program, plant).run(); }

}  // namespace fsdp::test::fuzz
