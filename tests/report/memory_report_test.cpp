// Tests of reports and timelines of memory, and of what forward holds.

#include <fsdp/activation_checkpoint.h>
#include <fsdp/memory_report.h>
#include <fsdp/memory_timeline.h>
#include <gmock/gmock.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "support/disk_folder.h"
#include "support/small_net.h"

namespace fsdp::test {
namespace {

constexpr int64_t kFloat = sizeof(float);

struct Trained {
  std::shared_ptr<SmallNetImpl> net = alike_small_net(torch::kFloat, 16);
  Group group = shard_blocks(*net);
  optim::AdamW optimizer{net->parameters()};

  void step(torch::optim::Optimizer& by) const {
    by.zero_grad();
    own_loss(*net, group, 0).backward();
    by.step();
  }
  void step() { step(optimizer); }
};

// Runs `act` over Gloo, because ranks that share memory have no whole parameters of their own.
void on_ranks_with_copies(const std::function<void(int)>& act) { run_thread_ranks(2, act, {.backend = "gloo"}); }

int64_t sum_over_groups(const MemoryReport& report, ByteCount ByteCounts::* count) {
  int64_t sum = 0;
  for (const auto& group : report.groups) sum += (group.bytes.*count).current;
  return sum;
}

TEST(MemoryReport, OfAllGroupsIsTheSumOfEachAndIsPrintedAsATableAndAsJson) {
  on_ranks_with_copies([](int rank) {
    Trained trained;
    const auto& group = trained.group;
    trained.step();
    group.unshard().wait();
    const auto report = memory_report(group, trained.optimizer);
    EXPECT_EQ(report.rank, rank);
    EXPECT_EQ(report.world_size, 2);
    ASSERT_EQ(report.groups.size(), 4u);
    EXPECT_EQ(report.groups[1].name, "blocks.0");
    for (const auto count : {&ByteCounts::rows, &ByteCounts::whole, &ByteCounts::gradient, &ByteCounts::optimizer})
      EXPECT_EQ((report.all.*count).current, sum_over_groups(report, count));
    const auto stats = group.stats();
    EXPECT_EQ(report.all.rows.current, stats.rows.current);
    EXPECT_EQ(report.all.gradient.peak, stats.gradient.peak);
    EXPECT_EQ(report.all.optimizer.current, stats.optimizer.current);
    EXPECT_GT(report.groups[0].bytes.whole.current, 0) << "the root, which unshard() asked for";
    EXPECT_EQ(report.groups[1].bytes.whole.current, 0);
    EXPECT_GT(report.groups[1].bytes.whole.peak, 0);
    std::ostringstream table;
    table << report;
    EXPECT_THAT(table.str(), testing::StartsWith(c10::str("rank ", rank, " of 2")));
    EXPECT_THAT(table.str(), testing::HasSubstr("\nblocks.0 "));
    EXPECT_THAT(table.str(), testing::HasSubstr("optimizer\n"));
    EXPECT_THAT(table.str(), testing::Not(testing::HasSubstr("disk"))) << "which has nothing";
    const auto json = nlohmann::json::parse(report.to_json());
    EXPECT_EQ(json["all"]["rows"]["current"], report.all.rows.current);
    EXPECT_EQ(json["groups"][1]["name"], "blocks.0");
    EXPECT_EQ(json["groups"][1]["gradient"]["peak"], report.groups[1].bytes.gradient.peak);
    group.reset_peak_stats();
    EXPECT_EQ(memory_report(group).groups[1].bytes.whole.peak, 0);
  });
}

TEST(MemoryReport, FindsTheStateOfLibTorchsOptimizers) {
  run_thread_ranks(2, [](int) {
    const Trained trained;
    const auto& group = trained.group;
    torch::optim::AdamW optimizer(trained.net->parameters());
    trained.step(optimizer);
    EXPECT_EQ(memory_report(group).all.optimizer.current, 0);
    const auto report = memory_report(group, optimizer);
    EXPECT_EQ(report.all.optimizer.current, 2 * kFloat * group.stats().rows_numel);
    EXPECT_EQ(report.all.optimizer.current, sum_over_groups(report, &ByteCounts::optimizer));
  });
}

using ClassOfGroup = std::pair<std::string, std::string>;

TEST(MemoryTimeline, HasEveryChangeOfEachGroup) {
  on_ranks_with_copies([](int) {
    Trained trained;
    const auto& group = trained.group;
    group.reset_peak_stats();
    const auto timeline = memory_timeline(group);
    trained.step();
    std::map<ClassOfGroup, int64_t> now, peaks;
    std::map<std::string, int64_t> sums, peaks_of_sums;
    int64_t last = 0;
    for (const auto& event : timeline.events()) {
      const std::string name(event.byte_class);
      EXPECT_GE(event.nanoseconds, last);
      last = event.nanoseconds;
      auto& bytes = now[{name, event.group}];
      sums[name] += event.bytes - bytes;
      bytes = event.bytes;
      peaks[{name, event.group}] = std::max(peaks[{name, event.group}], bytes);
      peaks_of_sums[name] = std::max(peaks_of_sums[name], sums[name]);
    }
    const auto report = memory_report(group);
    EXPECT_EQ(sums["rows"], report.all.rows.current);
    EXPECT_EQ(sums["optimizer"], report.all.optimizer.current);
    EXPECT_EQ(peaks_of_sums["whole"], report.all.whole.peak);
    EXPECT_EQ(peaks_of_sums["gradient"], report.all.gradient.peak);
    for (const auto& of_group : report.groups) {
      EXPECT_EQ((now[{"gradient", of_group.name}]), of_group.bytes.gradient.current);
      EXPECT_EQ((peaks[{"whole", of_group.name}]), of_group.bytes.whole.peak);
    }
  });
}

TEST(MemoryTimeline, IsOneAtATimeEndsWhereItGoesAndIsWrittenAsJson) {
  const DiskFolder folder;
  run_thread_ranks(2, [&](int rank) {
    Trained trained;
    const auto& group = trained.group;
    {
      const auto timeline = memory_timeline(group);
      EXPECT_THROW(MemoryTimeline another(group), UsageError);
      const auto before = timeline.events().size();
      trained.step();
      EXPECT_GT(timeline.events().size(), before) << "the refused one did not take its place";
      const auto path = c10::str(folder.path(), "/memory.", rank, ".json");
      timeline.write(path);
      const auto json = nlohmann::json::parse(std::ifstream(path));
      EXPECT_EQ(json["rank"], rank);
      EXPECT_EQ(json["events"].size(), timeline.events().size());
      EXPECT_EQ(json["events"][0]["class"], "rows");
      EXPECT_EQ(json["events"][0]["bytes"], timeline.events()[0].bytes);
      EXPECT_THROW(timeline.write(folder.path() + "/not/there.json"), Error);
    }
    trained.step();
    EXPECT_EQ(memory_timeline(group).events().front().nanoseconds, 0);
  });
}

constexpr int64_t kSamples = 32, kWidth = 64, kActivation = kSamples * kWidth * kFloat;

// Two layers whose results autograd keeps. They are one param group, or one group each inside another group.
struct Chain {
  torch::nn::Sequential layers = build_alike([] {
    return torch::nn::Sequential(torch::nn::Linear(kWidth, kWidth), torch::nn::Tanh(),
                                 torch::nn::Linear(kWidth, kWidth), torch::nn::Tanh());
  });
  Group group;
  torch::Tensor input = torch::ones({kSamples, kWidth});

  explicit Chain(std::vector<size_t> own_groups = {}) : group(shard(own_groups)) {}
  Group shard(const std::vector<size_t>& own_groups) {
    for (const size_t layer : own_groups) fully_shard(*layers->ptr(layer));
    return fully_shard(*layers);
  }
  int64_t held() const { return group.stats().activation.current; }
  int64_t peak() const { return group.stats().activation.peak; }
};

TEST(RecordActivations, CountsWhatForwardHoldsUntilBackwardHasUsedIt) {
  run_thread_ranks(2, [](int) {
    Chain chain;
    for (int step = 0; step < 2; ++step) {
      const RecordActivations recording(chain.group);
      auto output = in_scope(chain.group, [&] { return chain.layers->forward(chain.input); });
      EXPECT_EQ(chain.held(), 2 * kActivation) << "the results of tanh";
      const auto loss = output.sum();
      output.reset();
      loss.backward();
      EXPECT_EQ(chain.held(), kFloat) << "the loss";
    }
    EXPECT_EQ(chain.held(), 0);
    EXPECT_EQ(chain.peak(), 3 * kActivation) << "and what goes into the second tanh";
    const torch::NoGradGuard no_grad;
    const RecordActivations recording(chain.group);
    ForwardScope scope(chain.group);
    const auto output = chain.layers->forward(chain.input);
    EXPECT_EQ(chain.held(), kActivation) << "the output, where nothing is recorded";
  });
}

TEST(RecordActivations, AreThoseOfTheGroupThatWasReadLast) {
  run_thread_ranks(2, [](int) {
    Chain chain(/*own_groups=*/{0, 2});
    const RecordActivations recording(chain.group);
    const auto timeline = memory_timeline(chain.group);
    ForwardScope scope(chain.group);
    const auto before = torch::ones({kWidth});
    const auto output = chain.layers->forward(chain.input);
    const auto report = memory_report(chain.group);
    ASSERT_EQ(report.groups.size(), 3u);
    EXPECT_EQ(report.groups[0].bytes.activation.current, 0) << "the root, which has no parameters";
    EXPECT_EQ(report.groups[1].bytes.activation.current, kActivation);
    EXPECT_EQ(report.groups[1].bytes.activation.peak, 2 * kActivation) << "and what goes into tanh";
    EXPECT_EQ(report.groups[2].bytes.activation.current, kActivation);
    EXPECT_EQ(report.all.activation.current, 2 * kActivation + kWidth * kFloat) << "and what is nobody's";
    std::map<std::string, int64_t> last;
    for (const auto& event : timeline.events())
      if (event.byte_class == "activation") last[event.group] = event.bytes;
    EXPECT_THAT(last, testing::UnorderedElementsAre(testing::Pair("", kWidth * kFloat),
                                                    testing::Pair(report.groups[1].name, kActivation),
                                                    testing::Pair(report.groups[2].name, kActivation)));
  });
}

TEST(RecordActivations, OfWhatBackwardComputesAgainAreThoseOfTheGroupsThatItReads) {
  run_thread_ranks(2, [](int) {
    Chain chain(/*own_groups=*/{0, 2});
    chain.input.requires_grad_();
    const RecordActivations recording(chain.group);
    const auto part = [&](const torch::Tensor& x) { return chain.layers->forward(x); };
    const auto loss = in_scope(chain.group, [&] { return activation_checkpoint(part, chain.input).sum(); });
    chain.group.reset_peak_stats();
    loss.backward();
    const auto report = memory_report(chain.group);
    for (size_t layer : {size_t{1}, size_t{2}}) {
      EXPECT_GE(report.groups[layer].bytes.activation.peak, kActivation) << "the result of tanh, again";
      EXPECT_LE(report.groups[layer].bytes.activation.peak, 2 * kActivation + 2 * kFloat)
          << "and the loss, its gradient";
    }
  });
}

TEST(MemoryReport, WhatACheckpointKeepsIsThatOfTheGroupThatItReads) {
  run_thread_ranks(2, [](int) {
    Chain chain(/*own_groups=*/{0, 2});
    auto x = chain.input.requires_grad_();
    ForwardScope scope(chain.group);
    for (size_t layer : {size_t{0}, size_t{2}})
      x = activation_checkpoint(
          [&chain, layer](const torch::Tensor& input) {
            return chain.layers->at<torch::nn::LinearImpl>(layer).forward(input).tanh();
          },
          x);
    const auto report = memory_report(chain.group);
    EXPECT_EQ(report.groups[1].bytes.activation.current, kActivation);
    EXPECT_EQ(report.groups[2].bytes.activation.current, kActivation);
    EXPECT_EQ(report.all.activation.current, 2 * kActivation);
    x.sum().backward();
    EXPECT_EQ(memory_report(chain.group).groups[1].bytes.activation.current, 0);
  });
}

}  // namespace
}  // namespace fsdp::test
