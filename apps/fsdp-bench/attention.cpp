#include "attention.h"

#include <fsdp/collectives.h>
#include <fsdp/error.h>
#include <fsdp/process_group.h>
#include <fsdp/sequence_parallel.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "join_ranks.h"
#include "statistics.h"

namespace bench {
namespace {

using Json = nlohmann::ordered_json;

/// Queries, keys and values of shape [1, heads, tokens, size], and the gradient of the attention's output.
struct AttentionTensors {
  AttentionTensors(int64_t heads, int64_t tokens, int64_t size) {
    for (auto* leaf : {&query, &key, &value}) *leaf = torch::randn({1, heads, tokens, size}).requires_grad_();
    grad = torch::randn_like(query);
  }
  /// Runs forward and backward.
  void attend(bool is_causal) {
    torch::scaled_dot_product_attention(query, key, value, {}, 0.0, is_causal).backward(grad);
    for (auto* leaf : {&query, &key, &value}) leaf->mutable_grad().reset();
  }

  at::Tensor query, key, value, grad;
};

/// Returns the seconds that `run` takes on the slowest rank. All ranks begin together. Collective.
double seconds_of_slowest(const std::function<void()>& run) {
  fsdp::barrier();
  const auto start = std::chrono::steady_clock::now();
  run();
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  return of_slowest_rank(spent.count());
}

struct TimedMethod {
  std::string name;
  std::function<void()> run;
  std::vector<double> seconds = {}, ratios = {};  // one for each round; ratios to the time of ranks that compute alone
};

void print_methods(const std::vector<TimedMethod>& methods) {
  std::cout << "Medians with quartiles. The ratio compares with ranks that each compute their share of the heads alone "
               "in the same round.\n\n"
            << std::left << std::setw(22) << "method" << std::right << std::setw(30) << "milliseconds" << std::setw(26)
            << "ratio" << std::setw(20) << "share of the ideal" << '\n';
  for (const auto& method : methods) {
    const auto time = quartiles(method.seconds), ratio = quartiles(method.ratios);
    std::cout << std::left << std::setw(22) << method.name << std::right << std::fixed << std::setprecision(1)
              << std::setw(11) << time.middle * 1e3 << " (" << std::setw(7) << time.low * 1e3 << " to " << std::setw(6)
              << time.high * 1e3 << ')' << std::setprecision(3) << std::setw(9) << ratio.middle << " (" << ratio.low
              << " to " << ratio.high << ')' << std::setprecision(1) << std::setw(18) << 100 / ratio.middle << " %\n";
  }
  std::cout << std::flush;
}

Json json_of_methods(const std::vector<TimedMethod>& methods) {
  Json all;
  for (const auto& method : methods) {
    const auto time = quartiles(method.seconds), ratio = quartiles(method.ratios);
    all.push_back({{"method", method.name},
                   {"ms", round_to(time.middle * 1e3, 3)},
                   {"ms_quartiles", {round_to(time.low * 1e3, 3), round_to(time.high * 1e3, 3)}},
                   {"ratio", round_to(ratio.middle, 4)},
                   {"ratio_quartiles", {round_to(ratio.low, 4), round_to(ratio.high, 4)}}});
  }
  return all;
}

}  // namespace

void run_attention(const AttentionArguments& arguments) {
  join_ranks(arguments.backend, arguments.world);
  const int64_t ranks = arguments.world;
  if (arguments.heads % ranks != 0 || arguments.length % (2 * ranks) != 0)
    throw fsdp::UsageError(
        "fsdp-bench: expected --heads to be a multiple of --world, and --length to be a multiple of twice --world. "
        "Found --heads " +
        std::to_string(arguments.heads) + ", --length " + std::to_string(arguments.length) + " and --world " +
        std::to_string(arguments.world) + ".");
  AttentionTensors alone(arguments.heads / ranks, arguments.length, arguments.head_size);
  AttentionTensors shared(arguments.heads, arguments.length / ranks, arguments.head_size);
  const auto over_ranks = [&](fsdp::SequenceMethod method) {
    return [&, method] {
      const fsdp::SequenceParallel sequence(nullptr, method);
      shared.attend(arguments.is_causal);
    };
  };
  using enum fsdp::SequenceMethod;
  std::vector<TimedMethod> methods{{"alone", [&] { alone.attend(arguments.is_causal); }},
                                   {"head-tail", over_ranks(kHeadTail)},
                                   {"ring", over_ranks(kRing)},
                                   {"gather", over_ranks(kGather)},
                                   {"heads", over_ranks(kHeads)}};
  for (int64_t round = -1; round < arguments.rounds; ++round) {
    std::vector<double> seconds(methods.size());
    for (size_t i = 0; i < methods.size(); ++i) {
      const size_t next = round % 2 == 0 ? i : methods.size() - 1 - i;
      seconds[next] = seconds_of_slowest(methods[next].run);
    }
    for (size_t i = 0; i < methods.size() && round >= 0; ++i) {
      methods[i].seconds.push_back(seconds[i]);
      methods[i].ratios.push_back(seconds[i] / seconds[0]);
    }
  }
  if (fsdp::rank() == 0 && arguments.json)
    std::cout << Json{{"world", ranks},
                      {"backend", arguments.backend},
                      {"length", arguments.length},
                      {"methods", json_of_methods(methods)}}
                     .dump()
              << std::endl;
  if (fsdp::rank() == 0 && !arguments.json) print_methods(methods);
  fsdp::destroy_process_group();
}

}  // namespace bench
