#include "collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fsdp/process_group.h>

#include <iostream>
#include <memory>

#include "collective_timing.h"
#include "collectives_report.h"
#include "join_ranks.h"
#include "process_memory.h"

namespace bench {
namespace {

constexpr int64_t kGrowth = 4;
constexpr int64_t kElementBytes = sizeof(float);

std::vector<int64_t> message_sizes(const CollectivesArguments& arguments) {
  std::vector<int64_t> sizes;
  for (int64_t bytes = arguments.min_bytes; bytes <= arguments.max_bytes; bytes *= kGrowth) sizes.push_back(bytes);
  return sizes;
}

/// Two buffers of the largest message's size, which all measurements use.
struct Buffers {
  at::Tensor first, second;
};

// Returns `numel` rounded up to a multiple of the number of ranks.
int64_t dealt_evenly(int64_t numel) {
  const int64_t world = fsdp::world_size();
  return (numel + world - 1) / world * world;
}

CollectiveRow measure(const CollectiveCase& collective, int64_t bytes, const Buffers& buffers,
                      const std::vector<fsdp::Communicator*>& communicators) {
  std::vector<Contender> contenders;
  for (auto* communicator : communicators) contenders.push_back({collective, *communicator});
  contenders.push_back({copy_case(), *communicators.front()});
  const int64_t numel = dealt_evenly(bytes / kElementBytes);
  auto medians = time_in_turns(contenders, buffers.first.narrow(0, 0, numel), buffers.second.narrow(0, 0, numel));
  const double copy = medians.back();
  medians.pop_back();
  return {.collective = collective.name,
          .bytes = bytes,
          .repetitions = repetitions(bytes),
          .bus_share = collective.bus_share(fsdp::world_size()),
          .microseconds = std::move(medians),
          .copy_microseconds = copy};
}

std::vector<CollectiveRow> measure_all(const std::vector<int64_t>& sizes,
                                       const std::vector<fsdp::Communicator*>& communicators) {
  const auto first = at::empty({dealt_evenly(sizes.back() / kElementBytes)});
  const Buffers buffers{.first = first, .second = at::empty_like(first)};
  std::vector<CollectiveRow> rows;
  for (const auto& collective : collective_cases()) {
    for (const int64_t bytes : sizes) rows.push_back(measure(collective, bytes, buffers, communicators));
  }
  rows.push_back({.collective = "barrier", .repetitions = repetitions(1), .microseconds = time_barrier(communicators)});
  return rows;
}

}  // namespace

void run_collectives(const CollectivesArguments& arguments) {
  join_ranks(arguments.backend, arguments.world);
  CollectivesReport report{.world = fsdp::world_size(), .backends = {arguments.backend}};
  std::vector<std::shared_ptr<fsdp::ProcessGroup>> groups{fsdp::default_process_group()};
  if (arguments.backend != "gloo") {
    groups.push_back(fsdp::new_process_group({.backend = "gloo"}));
    report.backends.emplace_back("gloo");
  }
  std::vector<fsdp::Communicator*> communicators;
  for (const auto& group : groups) communicators.push_back(&group->communicator());

  const auto sizes = message_sizes(arguments);
  report.buffer_bytes = 2 * sizes.back();
  report.rows = measure_all(sizes, communicators);
  report.peak_resident_mb = peak_resident_mb();
  if (fsdp::rank() == 0) std::cout << (arguments.json ? to_json(report) + '\n' : to_table(report)) << std::flush;
  fsdp::destroy_process_group();
}

}  // namespace bench
