// Tests of training within a limit on memory or on file sizes. The ranks are processes.

#include <fsdp/optim.h>
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <algorithm>
#include <iostream>

#include "support/backend.h"
#include "support/data_limit.h"
#include "support/disk_folder.h"
#include "support/oracle.h"
#include "support/process_ranks.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kDim = 512, kMiB = int64_t{1} << 20;
constexpr int kWorld = 2;
constexpr int64_t kLimit = 32 * kMiB;
// Each layer takes 1 MiB. On each of two ranks, rows, gradients and AdamW's state are three times the limit.
constexpr int kLayers = 48;
static_assert(kLayers * kDim * kDim * 4 * 4 / kWorld == 3 * kLimit);

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Makes one layer after the other, and trains two steps. Returns a hash of the whole model's bits.
int64_t train(int layers, const FullyShardOptions& options) {
  torch::manual_seed(3);
  nn::Sequential net;
  for (int i = 0; i < layers; ++i) {
    nn::Linear layer(nn::LinearOptions(kDim, kDim).bias(false));
    fully_shard(*layer, options);
    net->push_back(layer);
  }
  const auto group = fully_shard(*net, options);
  optim::AdamW optimizer(group.parameters(), torch::optim::AdamWOptions(1e-3));
  for (int step = 0; step < 2; ++step) {
    torch::Tensor loss;
    {
      ForwardScope scope(group);
      auto x = torch::full({2, kDim}, 0.5F + static_cast<float>(rank() + step));
      for (auto& layer : *net) x = layer.ptr()->as<nn::Linear>()->forward(x) + x;
      loss = x.square().mean();
    }
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  uint64_t bits = 0;
  for (const auto& parameter : net->parameters())
    bits =
        bits * 31 + static_cast<uint64_t>(full_tensor(parameter).view(torch::kInt).sum(torch::kLong).item<int64_t>());
  return static_cast<int64_t>(bits);
}

std::string line_of_bits(const std::string& output) {
  const auto line = output.substr(std::min(output.find("bits "), output.size()));
  return line.substr(0, line.find('\n'));
}

FullyShardOptions options_of_case() {
  FullyShardOptions options;
  if (const auto folder = variable("CASE_FOLDER"); !folder.empty())
    options.disk_policy = DiskOffloadPolicy{.folder = folder};
  return options;
}

PROCESS_CASE(train_within_a_limit_on_memory) {
  torch::set_num_threads(1);
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(20)});
  train(4, {});  // the first training makes threads, buffers of kernels and memory of transports
  if (!variable("CASE_IS_LIMITED").empty()) limit_data_to_another(kLimit);
  std::cout << "bits " << train(kLayers, options_of_case()) << std::endl;
}

PROCESS_CASE(shard_onto_a_full_disk) {
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(20)});
  nn::Linear net(kDim, kDim);
  if (rank() == 1) {
    const rlimit limit{static_cast<rlim_t>(64 << 10), RLIM_INFINITY};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) throw std::runtime_error("setrlimit");
  }
  try {
    fully_shard(*net, options_of_case());
  } catch (const Error& error) {
    std::cout << error.what_without_backtrace() << "\nsizes " << net->weight.sizes() << std::endl;
    barrier();
    return;
  }
  throw std::runtime_error("it was sharded");
}

TEST(DiskOffloadProcesses, TrainWithinALimitThatTheirStateExceedsThreefold) {
  const auto run = [](std::map<std::string, std::string> environment) {
    // Whole parameters get their own mappings, so freeing them returns their memory and leaves no holes in the heap.
    environment["MALLOC_MMAP_THRESHOLD_"] = "262144";
    ProcessRanks ranks("train_within_a_limit_on_memory", {.world_size = kWorld, .environment = environment});
    std::vector<RankResult> results;
    for (int r = 0; r < kWorld; ++r) results.push_back(ranks.wait(r));
    return results;
  };
  const DiskFolder folder;
  const auto unlimited = run({}), without_disk = run({{"CASE_IS_LIMITED", "1"}}),
             with_disk = run({{"CASE_IS_LIMITED", "1"}, {"CASE_FOLDER", folder.path()}});
  for (size_t r = 0; r < kWorld; ++r) {
    ASSERT_EQ(unlimited[r].exit_code, 0) << unlimited[r].output;
    EXPECT_NE(without_disk[r].exit_code, 0) << "the limit is no limit";
    ASSERT_EQ(with_disk[r].exit_code, 0) << with_disk[r].output;
    EXPECT_THAT(unlimited[r].output, HasSubstr("bits "));
    // The line may not be the last one, because the rank that ends last may be told that the store is gone.
    EXPECT_EQ(line_of_bits(unlimited[r].output), line_of_bits(with_disk[r].output));
  }
  EXPECT_THAT(without_disk[0].output + without_disk[1].output, HasSubstr("memory"));
}

TEST(DiskOffloadProcesses, OnAFullDiskFailBeforeAnythingIsSharded) {
  const DiskFolder folder;
  ProcessRanks ranks("shard_onto_a_full_disk", {.world_size = 2, .environment = {{"CASE_FOLDER", folder.path()}}});
  for (int r : {0, 1}) {
    ASSERT_EQ(ranks.wait(r).exit_code, 0) << ranks.wait(r).output;
    EXPECT_THAT(ranks.wait(r).output, AllOf(HasSubstr(c10::str("[fsdp rank ", r, "/2]")), HasSubstr("sizes [512, 512]"),
                                            HasSubstr("DiskOffloadPolicy::folder")));
  }
  EXPECT_THAT(ranks.wait(0).output, HasSubstr("rank 1 failed, and its own error says why"));
  EXPECT_THAT(ranks.wait(1).output, AllOf(HasSubstr(folder.path()), HasSubstr("bytes are needed"),
                                          HasSubstr("bytes are free"), HasSubstr("ulimit -f")));
}

}  // namespace
}  // namespace fsdp::test
