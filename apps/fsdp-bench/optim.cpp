#include "optim.h"

#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>

#include "statistics.h"

namespace bench {
namespace {

using Json = nlohmann::ordered_json;
using torch::optim::Optimizer;

struct Tensors : torch::nn::Module {
  Tensors(int64_t count, int64_t numel) {
    for (int64_t i = 0; i < count; ++i)
      register_parameter(std::to_string(i), torch::randn({std::max<int64_t>(1, numel / count / 250), 250}) * 0.02);
  }
};

std::shared_ptr<Tensors> make_tensors(const OptimArguments& arguments) {
  torch::manual_seed(1);
  return std::make_shared<Tensors>(arguments.tensors, arguments.numel);
}

// Makes gradients by a backward of the parameters' squares, so both models have the same gradients.
void run_backward(const Tensors& tensors) {
  std::vector<at::Tensor> sums;
  for (const auto& parameter : tensors.parameters()) sums.push_back(parameter.square().sum());
  torch::stack(sums).sum().backward();
}

// One kind of optimizer, which both libraries can make.
struct Contest {
  const char* name;
  /// Number of state values for each element.
  int64_t states;
  std::function<std::unique_ptr<Optimizer>(std::vector<at::Tensor>)> torchs, ours;
};

template <class Torchs, class Ours>
Contest contest(const char* name, int64_t states, const typename Ours::Options& options) {
  return {name, states, [=](auto parameters) { return std::make_unique<Torchs>(std::move(parameters), options); },
          [=](auto parameters) { return std::make_unique<Ours>(std::move(parameters), options); }};
}

std::vector<Contest> contests() {
  namespace theirs = torch::optim;
  namespace ours = fsdp::optim;
  return {contest<theirs::AdamW, ours::AdamW>("adamw", 2, theirs::AdamWOptions(1e-4)),
          contest<theirs::Adam, ours::Adam>("adam", 2, theirs::AdamOptions(1e-4)),
          contest<theirs::SGD, ours::SGD>("sgd", 1, theirs::SGDOptions(1e-4).momentum(0.9)),
          contest<theirs::RMSprop, ours::RMSprop>("rmsprop", 1, theirs::RMSpropOptions(1e-4)),
          contest<theirs::Adagrad, ours::Adagrad>("adagrad", 1, theirs::AdagradOptions(1e-4))};
}

double milliseconds(const auto& act) {
  const auto start = std::chrono::steady_clock::now();
  act();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

double gb_per_s(int64_t bytes, double ms) { return round_to(static_cast<double>(bytes) / ms / 1e6, 1); }

double largest_difference(const Tensors& plain, const Tensors& sharded) {
  double largest = 0;
  const auto expected = plain.parameters(), found = sharded.parameters();
  for (size_t i = 0; i < expected.size(); ++i)
    largest = std::max(largest, (expected[i].detach() - fsdp::full_tensor(found[i])).abs().max().item<double>());
  return largest;
}

Json run_contest(const Contest& contest, const OptimArguments& arguments) {
  const auto plain = make_tensors(arguments), sharded = make_tensors(arguments);
  fsdp::FullyShardOptions options;
  if (arguments.param_dtype == "bf16") options.mp_policy = fsdp::MixedPrecisionPolicy{.param_dtype = torch::kBFloat16};
  const auto group = fsdp::fully_shard(static_cast<torch::nn::Module&>(*sharded), options);
  run_backward(*plain);
  {
    const fsdp::ForwardScope scope(group);
    run_backward(*sharded);
  }
  const auto torchs = contest.torchs(plain->parameters()), ours = contest.ours(sharded->parameters());
  std::vector<double> torch_ms, our_ms, ratios;
  for (int64_t round = 0; round <= arguments.rounds; ++round) {
    const double theirs = milliseconds([&] { torchs->step(); }), mine = milliseconds([&] { ours->step(); });
    if (round == 0) continue;  // The first round creates the state.
    torch_ms.push_back(theirs);
    our_ms.push_back(mine);
    ratios.push_back(theirs / mine);
  }
  int64_t numel = 0;
  for (const auto& parameter : plain->parameters()) numel += parameter.numel();
  // A step reads and writes parameters and state, and reads gradients.
  const int64_t bytes = numel * static_cast<int64_t>(sizeof(float)) * (3 + 2 * contest.states);
  return {{"optimizer", contest.name},
          {"torch_ms", round_to(median(torch_ms), 2)},
          {"ms", round_to(median(our_ms), 2)},
          {"ratio", round_to(median(ratios), 2)},
          {"gb_per_s", gb_per_s(bytes, median(our_ms))},
          {"largest_difference", largest_difference(*plain, *sharded)}};
}

Json run_memory(const OptimArguments& arguments) {
  const auto a = torch::ones({arguments.numel}), b = torch::ones_like(a), sum = torch::zeros_like(a);
  std::vector<double> copy_ms, triad_ms;
  for (int64_t round = 0; round < arguments.rounds; ++round) {
    copy_ms.push_back(milliseconds([&] { sum.copy_(a); }));
    auto out = sum;
    triad_ms.push_back(milliseconds([&] { at::add_out(out, a, b, 3.0); }));
  }
  const int64_t bytes = arguments.numel * static_cast<int64_t>(sizeof(float));
  return {{"copy", gb_per_s(2 * bytes, median(copy_ms))}, {"triad", gb_per_s(3 * bytes, median(triad_ms))}};
}

}  // namespace

void run_optim(const OptimArguments& arguments) {
  torch::set_num_threads(static_cast<int>(arguments.threads));
  fsdp::init_process_group({.rank = 0, .world_size = 1});
  Json optimizers;
  for (const auto& contest : contests())
    if (arguments.optimizer == "all" || arguments.optimizer == contest.name)
      optimizers.push_back(run_contest(contest, arguments));
  std::cout << Json{{"tensors", arguments.tensors},
                    {"numel", arguments.numel},
                    {"threads", arguments.threads},
                    {"rounds", arguments.rounds},
                    {"param_dtype", arguments.param_dtype},
                    {"memory_gb_per_s", run_memory(arguments)},
                    {"optimizers", optimizers}}
                   .dump()
            << std::endl;
  fsdp::destroy_process_group();
}

}  // namespace bench
