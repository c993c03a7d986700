// Tests of the events of each param group in a trace of a step, of their order, and of the file that a trace writes.

#include <fsdp/explain.h>
#include <fsdp/trace.h>
#include <gmock/gmock.h>

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "report/trace_json.h"
#include "strategies/equal_groups_net.h"
#include "support/disk_folder.h"

namespace fsdp::test {
namespace {

using testing::ElementsAre;
using testing::IsSupersetOf;
using TracedNet = EqualGroupsNetImpl;

struct TracedModel {
  std::shared_ptr<EqualGroupsNetImpl> net = build_alike([] { return std::make_shared<EqualGroupsNetImpl>(); });
  Group group;
  optim::AdamW optimizer{net->parameters(), torch::optim::AdamWOptions(1e-3)};

  explicit TracedModel(Strategy strategy = Strategy::kFullShard) : group(shard(*net, {.strategy = strategy})) {}
  static Group shard(EqualGroupsNetImpl& net, const FullyShardOptions& options) {
    for (const auto& layer : net.layers->children()) fully_shard(*layer, options);
    return fully_shard(static_cast<torch::nn::Module&>(net), options);
  }
  void step() {
    optimizer.zero_grad();
    forward_and_backward(group, *net);
    optimizer.step();
  }
};

std::vector<TraceEvent> events_named(const std::vector<TraceEvent>& events, const std::string& name) {
  std::vector<TraceEvent> found;
  std::ranges::copy_if(events, std::back_inserter(found), [&](const auto& event) { return event.name == name; });
  return found;
}

std::multiset<std::string> traced_groups(const std::vector<TraceEvent>& events) {
  std::multiset<std::string> groups;
  for (const auto& event : events) groups.insert(event.group);
  return groups;
}

TEST(Trace, HasEachGatherReductionPrefetchAndWaitOfAStepByGroup) {
  run_thread_ranks_with(2, {.backend = "gloo"}, [](int) {
    TracedModel model;
    model.step();
    model.step();  // after this step the order of groups is known
    const auto before = model.group.stats();
    const Trace trace;
    model.step();
    const auto events = trace.events();
    const auto after = model.group.stats();
    const auto gathers = events_named(events, "all_gather"), reductions = events_named(events, "reduce_scatter");
    EXPECT_EQ(static_cast<int64_t>(gathers.size()), after.gathers - before.gathers);
    EXPECT_EQ(static_cast<int64_t>(reductions.size()), after.reductions - before.reductions);
    for (const auto& collective : gathers) {
      EXPECT_TRUE(collective.is_communication);
      EXPECT_EQ(static_cast<int64_t>(collective.bytes), TracedNet::kGroupBytes);
    }
    const auto names = traced_groups(reductions);
    EXPECT_THAT(names, IsSupersetOf({std::string("layers.0"), std::string("layers.3")}));
    EXPECT_EQ(traced_groups(events_named(events, "reduce")), names);
    EXPECT_EQ(static_cast<int64_t>(names.size()), TracedNet::kGroups);
    // In each pass, all layers but the first are gathered ahead.
    EXPECT_GE(static_cast<int64_t>(events_named(events, "prefetch").size()), 2 * (TracedNet::kLayers - 1));
    EXPECT_FALSE(events_named(events, "wait for all_gather").empty());
    EXPECT_FALSE(events_named(events, "wait for reduction").empty());
    ASSERT_EQ(events_named(events, "optimizer step").size(), 1u);
    ASSERT_EQ(events_named(events, "forward").size(), 1u);
    ASSERT_EQ(events_named(events, "backward").size(), 1u);
    const auto forward = events_named(events, "forward")[0], backward = events_named(events, "backward")[0],
               optimizer = events_named(events, "optimizer step")[0];
    EXPECT_LE(forward.end_ns, backward.begin_ns);
    EXPECT_LE(backward.end_ns, optimizer.begin_ns);
    for (const auto& event : events) {
      EXPECT_LE(event.begin_ns, event.end_ns) << event.name << ' ' << event.group;
      EXPECT_FALSE(event.has_failed);
    }
  });
}

TEST(Trace, KeepsTheNewestEventsRecordsWhileItLivesAndMarksWhatEndsByAnException) {
  run_thread_ranks(2, [](int) {
    const Trace all;
    {
      const Trace few({.max_events = 4});
      for (int i = 0; i < 10; ++i) const TraceSpan span("turn", std::to_string(i));
      std::vector<std::string> turns;
      for (const auto& event : few.events()) turns.push_back(event.group);
      EXPECT_THAT(turns, ElementsAre("6", "7", "8", "9"));
    }
    EXPECT_EQ(events_named(all.events(), "turn").size(), 10u);
    try {
      const TraceSpan span("throws");
      throw std::runtime_error("");
    } catch (const std::runtime_error&) {
    }
    ASSERT_EQ(all.events().size(), 11u);
    EXPECT_TRUE(all.events().back().has_failed);
  });
}

TEST(Trace, OfAllRanksIsOneFileWithAProcessForEach) {
  const DiskFolder folder;
  const auto path = folder.path() + "/trace.json";
  run_thread_ranks(3, [&](int) {
    TracedModel model;
    const Trace trace;
    model.step();
    trace.write(path);
    EXPECT_THROW(trace.write(folder.path() + "/missing/trace.json"), Error);
  });
  const auto json = nlohmann::json::parse(std::ifstream(path));
  std::map<int, std::set<std::string>> names;  // keyed by process id
  std::map<std::pair<int, int64_t>, std::vector<std::pair<double, double>>> tracks;
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] != "X") continue;
    const auto rank = event["pid"].get<int>();
    names[rank].insert(event["name"].get<std::string>());
    const auto begin = event["ts"].get<double>(), length = event["dur"].get<double>();
    EXPECT_GE(begin, 0);
    EXPECT_GE(length, 0);
    tracks[{rank, event["tid"].get<int64_t>()}].emplace_back(begin, begin + length);
  }
  ASSERT_EQ(names.size(), 3u);
  for (const auto& [rank, of_rank] : names)
    EXPECT_THAT(of_rank, IsSupersetOf({std::string("reduce_scatter layers.0"), std::string("reduce layers.0")}));
  constexpr double kRounding = 5e-4;  // in microseconds
  // Intervals that overlap on a track must be nested, or viewers cut them off.
  for (auto& [track, intervals] : tracks)
    for (const auto& [begin, end] : intervals)
      for (const auto& [other_begin, other_end] : intervals)
        EXPECT_FALSE(begin < other_begin && other_begin + kRounding < end && end + kRounding < other_end);
}

// LibTorch's profiler writes a temporary file. Another user may have a file whose name could be guessed.
TEST(Trace, OfOperatorsTouchesNobodysTemporaryFilesAndLeavesNone) {
  const DiskFolder folder;
  const char* previous = std::getenv("TMPDIR");
  const std::string kept = previous == nullptr ? "" : previous;
  setenv("TMPDIR", folder.path().c_str(), 1);
  const auto target = folder.path() + "/target", path = folder.path() + "/trace.json";
  run_thread_ranks(1, [&](int) {
    const Trace trace({.operators = true});
    std::filesystem::create_symlink(target, c10::str(folder.path(), "/fsdp-", getpid(), "-", gettid(), ".json"));
    (void)torch::ones({3}).add(1);
    trace.write(path);
  });
  EXPECT_FALSE(std::filesystem::exists(target));
  EXPECT_NE(nlohmann::json::parse(std::ifstream(path)).dump().find("aten::add"), std::string::npos);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2) << "the link, and the trace";
  setenv("TMPDIR", (folder.path() + "/missing").c_str(), 1);
  run_thread_ranks(2, [&](int rank) {
    // Thread ranks share one profiler, so only one of them may use it.
    const Trace trace({.operators = rank == 1});
    try {
      trace.write(path);
      ADD_FAILURE() << "without a folder for temporary files the operators are lost";
    } catch (const Error& error) {
      if (rank == 1) EXPECT_THAT(error.what_without_backtrace(), testing::HasSubstr("TMPDIR"));
    }
  });
  previous == nullptr ? unsetenv("TMPDIR") : setenv("TMPDIR", kept.c_str(), 1);
}

TEST(TraceJson, TracksHaveOneThingAtATimeAndAreAsFewAsMayBe) {
  const auto event = [](int64_t begin, int64_t end) { return TraceEvent{.begin_ns = begin, .end_ns = end}; };
  const std::vector<TraceEvent> events{event(0, 10), event(5, 8), event(7, 20), event(9, 30), event(10, 12)};
  EXPECT_THAT(report::tracks_of(events), ElementsAre(0, 1, 2, 1, 0));
}

// The formulas are those of docs/choosing.md. StrategyCosts compares them with what ranks do.
TEST(Explain, SaysWhatAStepMovesAndBoundsWhatItHolds) {
  for (const auto strategy :
       {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kShardOptimizer, Strategy::kReplicate})
    run_thread_ranks_with(2, {.backend = "gloo"}, [&](int) {
      SCOPED_TRACE(c10::str(strategy));
      TracedModel model(strategy);
      const auto told = explain(model.group);
      ASSERT_EQ(static_cast<int64_t>(told.groups.size()), TracedNet::kGroups);
      EXPECT_EQ(told.groups[1].strategy, strategy);
      EXPECT_EQ(told.groups[1].name, "layers.0");
      model.step();
      model.group.reset_peak_stats();
      const auto before = model.group.stats();
      const auto sent = traffic();
      model.step();
      const auto after = model.group.stats();
      EXPECT_EQ(told.rows, after.rows.peak);
      EXPECT_EQ(told.optimizer, after.optimizer.peak);
      EXPECT_LE(after.whole.peak, told.whole);
      EXPECT_LE(after.gradient.peak, told.gradient);
      EXPECT_GE(2 * after.gradient.peak, told.gradient);
      const auto gathers = after.gathers - before.gathers;
      EXPECT_LE(gathers, told.gathers);
      EXPECT_GE(2 * gathers, told.gathers);
      EXPECT_EQ(after.reductions - before.reductions, told.reduce_scatters + told.all_reduces);
      const auto links = traffic() - sent;
      const auto moved = links.inside_host.sent + links.between_hosts.sent;
      // Small tensors in one message begin at multiples of 16 bytes.
      EXPECT_LE(moved, told.gathers_bytes + told.reduce_scatters_bytes + told.all_reduces_bytes +
                           16 * (told.reduce_scatters + told.all_reduces));
      EXPECT_GE(3 * moved, 2 * (told.gathers_bytes + told.reduce_scatters_bytes + told.all_reduces_bytes));
    });
}

}  // namespace
}  // namespace fsdp::test
