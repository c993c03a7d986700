#include "compare.h"

#include <fsdp/collectives.h>
#include <fsdp/memory_timeline.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "frame/bytes_text.h"
#include "report.h"
#include "run.h"

namespace mnist {
namespace {

struct Engine {
  const char* name;
  const char* strategy;
  bool auto_wrap;
};
constexpr std::array<Engine, 3> kEngines = {
    {{"DDP", "replicate", false}, {"FSDP", "full_shard", false}, {"FSDP+wrap", "full_shard", true}}};

struct Compared {
  int64_t peak_bytes = 0;  // on the rank that held most
  double seconds = 0;
  EpochResult last;
};

// Returns the most bytes that the rank held at one time. They are the bytes that strategies shard: rows, whole
// parameters, gradients and optimizer state of all groups together.
int64_t peak_of(const std::vector<fsdp::MemoryEvent>& events) {
  std::map<std::pair<std::string_view, std::string>, int64_t> held;
  int64_t now = 0, peak = 0;
  for (const auto& event : events) {
    if (event.byte_class != "rows" && event.byte_class != "whole" && event.byte_class != "gradient" &&
        event.byte_class != "optimizer")
      continue;
    auto& bytes = held[{event.byte_class, event.group}];
    now += event.bytes - std::exchange(bytes, event.bytes);
    peak = std::max(peak, now);
  }
  return peak;
}

Compared run_engine(const Engine& engine, Arguments arguments, const Parts& parts) {
  arguments.sharding.strategy = engine.strategy;
  arguments.auto_wrap = engine.auto_wrap;
  std::optional<fsdp::MemoryTimeline> timeline;
  const Run run = train_and_test(arguments, parts, [&](const Model& model) { timeline.emplace(model); });
  const auto peak = fsdp::all_reduce(torch::tensor(peak_of(timeline->events())), fsdp::ReduceOp::kMax);
  return {peak.item<int64_t>(), run.seconds, run.epochs.back()};
}

void print_line(const Engine& engine, const Compared& found, const Compared& first) {
  char text[160];
  std::snprintf(text, sizeof(text), "%-10s %14ld %9s %9.2f %7.3f %11.6f %11.4f %8.2f %%", engine.name,
                static_cast<long>(found.peak_bytes), frame::bytes_text(found.peak_bytes).c_str(), found.seconds,
                found.seconds / first.seconds, found.last.loss, found.last.test.average_loss,
                100 * found.last.test.accuracy());
  std::cout << text << std::endl;
}

}  // namespace

void compare(const Arguments& arguments, const Parts& parts) {
  std::vector<Compared> all;
  for (const Engine& engine : kEngines) {
    if (fsdp::rank() == 0) std::cout << "== " << engine.name << std::endl;
    all.push_back(run_engine(engine, arguments, parts));
  }
  if (fsdp::rank() != 0) return;
  std::cout << "\n            peak bytes of a rank    seconds  of DDP  train loss   test loss  accuracy" << std::endl;
  for (size_t i = 0; i < all.size(); ++i) print_line(kEngines[i], all[i], all.front());
}

}  // namespace mnist
