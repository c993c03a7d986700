#include "checkpoint.h"

#include <fsdp/async_save.h>
#include <fsdp/checkpoint.h>
#include <fsdp/collectives.h>
#include <fsdp/error.h>
#include <fsdp/process_group.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "frame/moment.h"
#include "join_ranks.h"
#include "plain_file.h"
#include "statistics.h"
#include "training_step.h"

namespace bench {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// A folder for this run. Rank 0 makes it and removes it.
class Workplace {
 public:
  explicit Workplace(const std::string& parent) : path_(parent + "/fsdp-bench-checkpoint") {
    if (fsdp::rank() == 0 && !fs::create_directory(path_))
      throw fsdp::UsageError("fsdp-bench: " + path_ +
                             " already exists. If no other run is using this folder, an interrupted run has left it: "
                             "remove it.");
    fsdp::barrier();
  }
  ~Workplace() {
    std::error_code ignored;
    if (fsdp::rank() == 0) fs::remove_all(path_, ignored);
  }
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;

  std::string checkpoints() const { return path_ + "/checkpoints"; }
  std::string plain() const { return path_ + "/plain-" + std::to_string(fsdp::rank()); }

  /// Removes the files of a round, so that each round writes new files. Collective.
  void clear() const {
    fsdp::barrier();
    if (fsdp::rank() == 0) fs::remove_all(checkpoints());
    fs::remove(plain());
    fsdp::barrier();
  }

 private:
  std::string path_;
};

std::vector<fs::path> files_in(const std::string& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

/// Returns the bytes that this rank wrote for a checkpoint; on rank 0 they include the manifest.
std::vector<std::byte> own_bytes(const std::string& checkpoints) {
  char own[32];
  std::snprintf(own, sizeof own, "-%05d-of-", fsdp::rank());
  std::vector<std::byte> bytes;
  for (const auto& file : files_in(checkpoints)) {
    const auto name = file.filename().string();
    const bool is_rows = name.ends_with(".safetensors");
    if (is_rows ? name.find(own) == name.npos : fsdp::rank() != 0) continue;
    const auto begin = bytes.size();
    bytes.resize(begin + fs::file_size(file));
    read_plain(file.string(), std::span(bytes).subspan(begin));
  }
  return bytes;
}

/// Returns the seconds that `act` takes on the slowest rank. Collective.
double seconds_of(const std::function<void()>& act) {
  fsdp::barrier();
  const frame::Moment start(c10::kCPU);
  act();
  return of_slowest_rank(frame::Moment(c10::kCPU).seconds_since(start));
}

/// Seconds in each round: `plain` for plain files or a step alone, `ours` for the library or a step during a save.
struct Pair {
  std::vector<double> plain, ours;

  double share() const { return median(shares()); }
  std::vector<double> shares() const {
    std::vector<double> all;
    for (size_t i = 0; i < ours.size(); ++i) all.push_back(plain[i] / ours[i]);
    return all;
  }
};

struct Times {
  Pair write, read;
  double megabytes = 0;
  /// Seconds of a step alone, and of a step while a checkpoint is written.
  Pair step;
  /// Seconds until async_save_checkpoint returns and training goes on.
  std::vector<double> begin;
};

/// Times both functions. Which one goes first alternates from round to round.
void take_turns(Pair& pair, int64_t round, const std::function<void()>& plain, const std::function<void()>& ours) {
  std::array<std::pair<std::vector<double>*, const std::function<void()>*>, 2> turns{
      {{&pair.plain, &plain}, {&pair.ours, &ours}}};
  if (round % 2 == 1) std::swap(turns[0], turns[1]);
  for (const auto& [seconds, act] : turns) seconds->push_back(seconds_of(*act));
}

void forget_cached_files(const Workplace& place) {
  for (const auto& file : files_in(place.checkpoints())) forget_cached(file.string());
  forget_cached(place.plain());
  fsdp::barrier();
}

Times measure(const CheckpointArguments& arguments, Trainee& trainee, const Workplace& place) {
  const auto& group = *trainee.group;
  auto* optimizer = trainee.optimizer.get();
  const auto save = [&] { fsdp::save_checkpoint(place.checkpoints(), group, optimizer); };
  save();
  auto bytes = own_bytes(place.checkpoints());
  Times times;
  const auto all = fsdp::all_gather(torch::tensor(static_cast<int64_t>(bytes.size())));
  times.megabytes = static_cast<double>(all.sum().item<int64_t>()) / 1e6;
  for (int64_t round = -1; round < arguments.rounds; ++round) {
    Times warm_up;
    auto& kept = round < 0 ? warm_up : times;
    place.clear();
    take_turns(kept.write, round + 1, [&] { write_plain(place.plain(), bytes); }, save);
    forget_cached_files(place);
    take_turns(
        kept.read, round + 1, [&] { read_plain(place.plain(), bytes); },
        [&] { fsdp::load_checkpoint(place.checkpoints(), group, optimizer); });
  }
  return times;
}

/// Times steps alone and steps during a save. The number of timed steps is chosen so that
/// they last about as long as a save.
void measure_steps(const CheckpointArguments& arguments, c10::Device device, Trainee& trainee, const Workplace& place,
                   Times& times) {
  const auto batch = batch_of(arguments, 0, device);
  int64_t steps = 2;
  const auto a_step = [&] {
    const double all = seconds_of([&] {
      for (int64_t i = 0; i < steps; ++i) train_step(trainee, batch);
    });
    return all / static_cast<double>(steps);
  };
  a_step();
  steps = std::max<int64_t>(steps, std::llround(median(times.write.ours) / a_step()));
  for (int64_t round = 0; round < arguments.rounds; ++round) {
    place.clear();
    if (round % 2 == 0) times.step.plain.push_back(a_step());
    fsdp::AsyncSave saving;
    times.begin.push_back(seconds_of(
        [&] { fsdp::async_save_checkpoint(saving, place.checkpoints(), *trainee.group, trainee.optimizer.get()); }));
    times.step.ours.push_back(a_step());
    saving.wait();
    if (round % 2 == 1) times.step.plain.push_back(a_step());
  }
}

struct Line {
  const char* name;
  const std::vector<double>& seconds;
  const Pair* compared = nullptr;
};

std::vector<Line> lines_of(const Times& times) {
  return {{"plain_write", times.write.plain},
          {"save", times.write.ours, &times.write},
          {"plain_read", times.read.plain},
          {"load", times.read.ours, &times.read}};
}

std::string json_of(const CheckpointArguments& arguments, const Times& times) {
  Json json = {{"engine", "fsdp"},
               {"world", arguments.world},
               {"backend", arguments.backend},
               {"strategy", arguments.sharding.strategy},
               {"megabytes", round_to(times.megabytes, 1)},
               {"rounds", arguments.rounds}};
  for (const auto& [name, seconds, compared] : lines_of(times)) {
    const double typical = median(seconds);
    json[name] = {{"seconds", round_to(typical, 4)}, {"mb_per_s", round_to(times.megabytes / typical, 1)}};
    if (!compared) continue;
    const auto shares = compared->shares();
    json[name]["of_plain"] = round_to(compared->share(), 3);
    json[name]["of_plain_range"] = {round_to(*std::min_element(shares.begin(), shares.end()), 3),
                                    round_to(*std::max_element(shares.begin(), shares.end()), 3)};
  }
  json["async_begin"] = {{"seconds", round_to(median(times.begin), 4)}};
  json["step"] = {{"seconds", round_to(median(times.step.plain), 4)}};
  json["step_while_saving"] = {{"seconds", round_to(median(times.step.ours), 4)},
                               {"more", round_to(1 / times.step.share() - 1, 3)}};
  return json.dump();
}

void print_table(const CheckpointArguments& arguments, const Times& times) {
  std::cout << arguments.world << " ranks, " << std::fixed << std::setprecision(1) << times.megabytes
            << " MB of parameters and optimizer state. Times of the slowest rank, medians of " << arguments.rounds
            << " rounds. Every write waits for the disk (fsync),\nand no file is in memory before it is read.\n\n"
            << std::left << std::setw(12) << "" << std::right << std::setw(10) << "s" << std::setw(10) << "MB/s"
            << std::setw(10) << "of plain" << '\n';
  for (const auto& [name, seconds, compared] : lines_of(times)) {
    const double typical = median(seconds);
    std::cout << std::left << std::setw(12) << name << std::right << std::setprecision(3) << std::setw(10) << typical
              << std::setprecision(1) << std::setw(10) << times.megabytes / typical;
    if (compared) std::cout << std::setprecision(3) << std::setw(10) << compared->share();
    std::cout << '\n';
  }
  std::cout << "\nA step takes " << std::setprecision(4) << median(times.step.plain) << " s alone and "
            << median(times.step.ours) << " s while a checkpoint is written (" << std::setprecision(1) << std::showpos
            << 100 * (1 / times.step.share() - 1) << std::noshowpos << " %); beginning the save took "
            << std::setprecision(4) << median(times.begin) << " s.\n"
            << std::flush;
}

}  // namespace

void run_checkpoint(const CheckpointArguments& arguments) {
  const c10::Device device = join_ranks(arguments.backend, arguments.world);
  {
    auto trainee = make_trainee(arguments, device);
    train_step(trainee, batch_of(arguments, 0, device));  // This step creates the optimizer's state.
    const Workplace place(arguments.folder);
    auto times = measure(arguments, trainee, place);
    measure_steps(arguments, device, trainee, place, times);
    if (fsdp::rank() == 0) {
      if (arguments.json)
        std::cout << json_of(arguments, times) << std::endl;
      else
        print_table(arguments, times);
    }
    fsdp::barrier();
  }
  fsdp::destroy_process_group();
}

}  // namespace bench
