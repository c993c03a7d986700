#include "collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fsdp/process_group.h>

#include <iostream>
#include <memory>

#include "collective_timing.h"
#include "collectives_report.h"
#include "process_memory.h"
#include "start_ranks.h"

namespace bench {
namespace {

constexpr int64_t kGrowth = 4;
constexpr int64_t kElementBytes = sizeof(float);

std::vector<int64_t> message_sizes(const CollectivesArguments& arguments) {
  std::vector<int64_t> sizes;
  for (int64_t bytes = arguments.min_bytes; bytes <= arguments.max_bytes; bytes *= kGrowth) sizes.push_back(bytes);
  return sizes;
}

/// Two buffers, reused by all messages.
struct Buffers {
  explicit Buffers(int64_t bytes) : first(at::empty({bytes / kElementBytes})), second(at::empty_like(first)) {}

  std::vector<double> time(const CollectiveCase& collective, std::span<fsdp::Communicator* const> communicators,
                           int64_t bytes) const {
    const int64_t numel = bytes / kElementBytes;
    return time_collective(collective, communicators, first.narrow(0, 0, numel), second.narrow(0, 0, numel));
  }

  at::Tensor first, second;
};

std::vector<CollectiveRow> measure(const std::vector<int64_t>& sizes, const Buffers& buffers,
                                   std::span<fsdp::Communicator* const> communicators) {
  std::vector<double> copies;
  for (const int64_t bytes : sizes) copies.push_back(buffers.time(copy_case(), communicators.first(1), bytes)[0]);
  const int world = fsdp::world_size();
  std::vector<CollectiveRow> rows;
  for (const auto& collective : collective_cases()) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      rows.push_back({.collective = collective.name,
                      .bytes = sizes[i],
                      .repetitions = repetitions(sizes[i]),
                      .bus_share = collective.bus_share(world),
                      .microseconds = buffers.time(collective, communicators, sizes[i]),
                      .copy_microseconds = copies[i]});
    }
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
  const Buffers buffers(sizes.back());
  report.buffer_bytes = 2 * sizes.back();
  report.rows = measure(sizes, buffers, communicators);
  report.peak_resident_mb = peak_resident_mb();
  if (fsdp::rank() == 0) std::cout << (arguments.json ? to_json(report) + '\n' : to_table(report)) << std::flush;
  fsdp::destroy_process_group();
}

}  // namespace bench
