#include "offload.h"

#include <fsdp/collectives.h>
#include <fsdp/process_group.h>
#include <sys/mman.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "frame/moment.h"
#include "join_ranks.h"
#include "plain_file.h"
#include "statistics.h"
#include "training_step.h"

namespace bench {
namespace {

namespace fs = std::filesystem;

// Returns this process's mappings of files in `folder`. The files have been unlinked, so they have no names.
std::vector<std::span<char>> mapped_from(const std::string& folder) {
  const auto below = fs::canonical(folder).string() + "/";
  std::vector<std::span<char>> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    if (line.find(below) == line.npos || std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) != 2) continue;
    found.emplace_back(reinterpret_cast<char*>(begin), end - begin);
  }
  if (found.empty())
    throw std::runtime_error("expected files that are mapped into this process's memory, found none in " + folder);
  return found;
}

// Writes the mapped files to the disk, and lets the system drop them from memory.
void send_out(const std::string& folder) {
  for (const auto memory : mapped_from(folder)) {
    if (msync(memory.data(), memory.size(), MS_SYNC) != 0)
      throw std::runtime_error("cannot write the mapped files to the disk: msync failed");
    madvise(memory.data(), memory.size(), MADV_PAGEOUT);
  }
}

struct Moved {
  double read = 0, written = 0;  // bytes

  Moved operator-(const Moved& earlier) const { return {read - earlier.read, written - earlier.written}; }
};

// Returns the bytes that this process has moved from and to disks since it began.
Moved moved_so_far() {
  Moved moved;
  std::ifstream counts("/proc/self/io");
  std::string name;
  for (double count = 0; counts >> name >> count;) {
    if (name == "read_bytes:") moved.read = count;
    if (name == "write_bytes:") moved.written = count;
  }
  return moved;
}

double total_over_ranks(double value) {
  return fsdp::all_gather(torch::full({1}, value, torch::kDouble)).sum().item<double>();
}

// Returns the seconds that `act` takes on the slowest rank. Collective.
double slowest_seconds_of(const std::function<void()>& act) {
  fsdp::barrier();
  const frame::Moment start(c10::kCPU);
  act();
  return of_slowest_rank(frame::Moment(c10::kCPU).seconds_since(start));
}

struct OffloadTimes {
  std::vector<double> in_memory, in_files, from_disk, plain_write, plain_read;
  std::vector<double> read_mb, written_mb;  // moved by all ranks in a step that is timed as `from_disk`
};

// Writes and reads a plain file that has as many bytes as a step moved.
void measure_plain(const OffloadArguments& arguments, const Moved& moved, OffloadTimes& times) {
  const auto path = arguments.folder + "/fsdp-bench-offload-" + std::to_string(fsdp::rank());
  std::vector<std::byte> bytes(static_cast<size_t>(moved.written), std::byte{1});
  times.plain_write.push_back(slowest_seconds_of([&] { write_plain(path, bytes); }));
  forget_cached(path);
  bytes.resize(std::min(bytes.size(), static_cast<size_t>(moved.read)));
  times.plain_read.push_back(slowest_seconds_of([&] { read_plain(path, bytes); }));
  fs::remove(path);
}

OffloadTimes measure_offload(const OffloadArguments& arguments, Trainee& in_memory, Trainee& in_files,
                             c10::Device device) {
  OffloadTimes times;
  for (int64_t round = -1; round < arguments.rounds; ++round) {
    OffloadTimes warm_up;
    auto& kept = round < 0 ? warm_up : times;
    const auto batch = batch_of(arguments, round + 1, device);
    kept.in_memory.push_back(slowest_seconds_of([&] { train_step(in_memory, batch); }));
    kept.in_files.push_back(slowest_seconds_of([&] { train_step(in_files, batch); }));
    send_out(arguments.folder);
    const auto before = moved_so_far();
    kept.from_disk.push_back(slowest_seconds_of([&] {
      train_step(in_files, batch);
      send_out(arguments.folder);
    }));
    const auto moved = moved_so_far() - before;
    kept.read_mb.push_back(total_over_ranks(moved.read) / 1e6);
    kept.written_mb.push_back(total_over_ranks(moved.written) / 1e6);
    measure_plain(arguments, moved, kept);
  }
  return times;
}

}  // namespace

void run_offload(const OffloadArguments& arguments) {
  const auto device = join_ranks(arguments.backend, arguments.world);
  auto in_memory = make_trainee(arguments, device);
  auto with_files = arguments;
  with_files.disk_folder = arguments.folder;
  auto in_files = make_trainee(with_files, device);
  const auto times = measure_offload(arguments, in_memory, in_files, device);
  const double read = median(times.read_mb), written = median(times.written_mb), from_disk = median(times.from_disk),
               plain_write = median(times.plain_write), plain_read = median(times.plain_read);
  const double files = total_over_ranks(static_cast<double>(in_files.stats().disk.peak)) / 1e6;
  const nlohmann::ordered_json line = {{"world", arguments.world},
                                       {"backend", arguments.backend},
                                       {"parameters", in_files.stats().parameter_numel},
                                       {"files_mb", round_to(files, 1)},
                                       {"rounds", arguments.rounds},
                                       {"in_memory_s", round_to(median(times.in_memory), 3)},
                                       {"in_files_s", round_to(median(times.in_files), 3)},
                                       {"from_disk_s", round_to(from_disk, 3)},
                                       {"read_mb", round_to(read, 1)},
                                       {"written_mb", round_to(written, 1)},
                                       {"disk_mb_per_s", round_to((read + written) / from_disk, 0)},
                                       {"plain_read_mb_per_s", round_to(std::min(read, written) / plain_read, 0)},
                                       {"plain_write_mb_per_s", round_to(written / plain_write, 0)},
                                       {"plain_s", round_to(plain_read + plain_write, 3)}};
  if (fsdp::rank() == 0) std::cout << line.dump() << std::endl;
  fsdp::destroy_process_group();
}

}  // namespace bench
