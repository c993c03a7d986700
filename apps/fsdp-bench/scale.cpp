#include "scale.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <fsdp/error.h>
#include <fsdp/spawn.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iomanip>
#include <iostream>
#include <set>
#include <vector>

#include "comm/core/text.h"
#include "join_ranks.h"
#include "scale_case.h"
#include "stand_in.h"

namespace bench {
namespace {

using fsdp::str_cat;

/// Costs of one rank that follow from a model's layout, in bytes.
struct LayoutCosts {
  int64_t state = 0;   // rows, their gradients and AdamW's state, all in fp32
  int64_t sent = 0;    // sent in a step: all-gathers in bf16, reductions in fp32
  int64_t layout = 0;  // memory of the largest layout of a group
};

LayoutCosts costs_of(const Llama& model, int64_t shards, int64_t replicas) {
  constexpr fsdp::layout::Alignment kFloats{.begin = 16, .slice = 4};
  LayoutCosts costs;
  const auto add = [&](const std::vector<fsdp::layout::Item>& group, int64_t times, int64_t gathers) {
    int64_t layout = 0;
    for (const auto& plane : fsdp::layout::plan_planes(group, static_cast<int>(shards), kFloats)) {
      const int64_t from_others = plane.numel() - plane.slice_numel;
      costs.state += times * plane.slice_numel * 16;
      costs.sent += times * (from_others * 2 * gathers + from_others * 4);
      costs.sent += times * 2 * plane.slice_numel * 4 * (replicas - 1) / replicas;
      layout += static_cast<int64_t>(sizeof plane + plane.items.size() * sizeof plane.items.front());
    }
    costs.layout = std::max(costs.layout, layout);
  };
  add(model.block(), model.layers, 2);
  add(model.root(), 1, 1);
  return costs;
}

/// Returns the ranks of a job that are simulated.
std::vector<int> some_of(int ranks) {
  const std::set<int> some{0, std::min(1, ranks - 1), ranks / 2, ranks - 1};
  return {some.begin(), some.end()};
}

RankCounts most_of(const std::vector<RankCounts>& all) {
  RankCounts most;
  for (const auto& counts : all)
    for (const auto number : kRankNumbers) most.*number = std::max(most.*number, counts.*number);
  return most;
}

// Returns a power of two near the square root of `ranks`.
int replicas_of(int ranks) { return 1 << (static_cast<int>(std::log2(ranks)) / 2); }

void print_heading() {
  std::cout << std::left << std::setw(13) << "model" << std::right;
  for (const char* name : {"ranks", "mesh", "headers", "store", "goal", "data", "joining"})
    std::cout << std::setw(9) << name;
  for (const char* name : {"MB sent", "MB state", "B layout"}) std::cout << std::setw(11) << name;
  std::cout << std::endl;
}

void print(const Llama& model, int ranks, int replicas, const RankCounts& counts) {
  const auto costs = costs_of(model, ranks / replicas, replicas);
  std::cout << std::left << std::setw(13) << model.name << std::right << std::setw(9) << ranks << std::setw(9)
            << (replicas == 1 ? str_cat(ranks) : str_cat(replicas, 'x', ranks / replicas)) << std::fixed;
  for (const int64_t number : {counts.headers, counts.calls, 4 + static_cast<int64_t>(std::log2(ranks)),
                               counts.messages + counts.gathers + counts.reductions, counts.joining_calls})
    std::cout << std::setw(9) << number;
  std::cout << std::setprecision(1) << std::setw(11) << static_cast<double>(costs.sent) / 1e6 << std::setw(11)
            << static_cast<double>(costs.state) / 1e6 << std::setw(11) << costs.layout << std::endl;
}

void run_simulation(const ScaleArguments& arguments) {
  print_heading();
  for (const auto& model : llamas())
    for (const bool has_replicas : {false, true})
      for (const int ranks : arguments.ranks) {
        const int replicas = has_replicas ? replicas_of(ranks) : 1;
        const Job job{.ranks = ranks, .transport = arguments.transport};
        print(model, ranks, replicas, most_of(simulate(job, model.layers, replicas, some_of(ranks))));
      }
}

// Returns the counts of all ranks, in rank order. Collective.
std::vector<RankCounts> gather_counts(const fsdp::ProcessGroup& group, const RankCounts& own) {
  const auto bytes = at::empty({sizeof own}, at::kByte);
  const auto all = at::empty({group.world_size() * bytes.numel()}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), &own, sizeof own);
  group.communicator().all_gather(all, bytes, {"counts"})->wait();
  std::vector<RankCounts> counts(static_cast<size_t>(group.world_size()));
  std::memcpy(counts.data(), all.const_data_ptr(), all.nbytes());
  return counts;
}

// Compares all numbers but `gathers` and `reductions`, because real ranks on the CPU issue nothing to a device's
// backend.
bool have_equal_messages(const RankCounts& a, const RankCounts& b) {
  return std::ranges::all_of(kRankNumbers, [&](const auto number) {
    return number == &RankCounts::gathers || number == &RankCounts::reductions || a.*number == b.*number;
  });
}

std::string text_of(const RankCounts& counts) {
  return str_cat(counts.headers, " headers, ", counts.messages, " messages, ", counts.sent_bytes, " bytes, ",
                 counts.calls, " calls to the store, ", counts.joining_calls, " calls to join");
}

void run_real_rank(const Job& job, int64_t layers, int replicas) {
  at::set_num_threads(1);
  const auto counters = std::make_shared<Counters>();
  const auto group = join_counted(job, counters);
  const auto found = gather_counts(*group, count_steps(group, layers, replicas, job, *counters));
  if (group->rank() != 0) return group->communicator().barrier({"compared"})->wait();
  const auto ranks = some_of(job.ranks);
  const auto expected = simulate(job, layers, replicas, ranks);
  for (size_t i = 0; i < ranks.size(); ++i) {
    const auto& counts = found[static_cast<size_t>(ranks[i])];
    std::cout << "rank " << ranks[i] << " of " << job.ranks << ", " << job.transport << ", replicas: " << replicas
              << ": " << text_of(counts) << std::endl;
    if (!have_equal_messages(counts, expected[i]))
      throw fsdp::Error(str_cat("fsdp-bench: rank ", ranks[i], " of ", job.ranks, " over ", job.transport,
                                " counted different numbers than the simulation, which has ", text_of(expected[i]),
                                "."));
  }
  group->communicator().barrier({"compared"})->wait();
}

}  // namespace

void run_scale(const ScaleArguments& arguments) {
  if (!arguments.real) return run_simulation(arguments);
  for (const int ranks : arguments.ranks)
    for (const int replicas : {1, replicas_of(ranks)}) {
      const int per_host = arguments.transport == "shm" ? ranks : (ranks + 1) / 2;
      const Job job{.ranks = ranks, .ranks_per_host = per_host, .transport = arguments.transport};
      fsdp::spawn([&](int) { run_real_rank(job, arguments.layers, replicas); }, ranks);
    }
}

}  // namespace bench
