// Tests of programs that choose a locale in which numbers have separators.

#include <fsdp/checkpoint.h>

#include "misuse/net.h"
#include "process/ranks.h"
#include "support/backend.h"
#include "support/disk_folder.h"
#include "support/separators.h"

namespace fsdp::test {
namespace {

bool is_rank_1() { return std::getenv("RANK") == std::string("1"); }

PROCESS_CASE(train_with_separators) {
  const std::string chosen = std::getenv("CHOSEN");
  if (chosen == "before" || (chosen == "by one rank" && is_rank_1())) take_locale_with_separators();
  init_process_group({.backend = std::getenv("BACKEND"), .timeout = std::chrono::seconds(20)});
  if (chosen == "afterwards") take_locale_with_separators();
  torch::manual_seed(7);
  MisuseNet net;
  auto group = shard(*net);
  torch::optim::AdamW optimizer(net->parameters());
  for (int step = 0; step < 12; ++step) {
    optimizer.zero_grad();
    {
      ForwardScope scope(group);
      small_loss(*net, share(step)).backward();
    }
    clip_grad_norm_(group, 0.25);
    optimizer.step();
  }
  save_checkpoint(std::getenv("FOLDER"), group, &optimizer, {.step = 1234});
  TORCH_CHECK(load_checkpoint(std::getenv("FOLDER"), group, &optimizer).step == 1234);
}

TEST(ALocaleWithSeparators, ChangesNothingThatRanksTellEachOther) {
  for (const char* backend : {"shm", "gloo"}) {
    for (const char* chosen : {"before", "by one rank", "afterwards"}) {
      SCOPED_TRACE(std::string(backend) + " " + chosen);
      const DiskFolder folder;
      auto ranks = start_ranks("train_with_separators", 2,
                               {{"BACKEND", backend}, {"CHOSEN", chosen}, {"FOLDER", folder.path()}});
      expect_ends(ranks, 2, 0);
    }
  }
}

PROCESS_CASE(differ_with_separators) {
  init_process_group({.backend = std::getenv("BACKEND"), .timeout = std::chrono::minutes(5)});
  take_locale_with_separators();
  auto& ranks = default_process_group()->communicator();
  for (int i = 0; i < 20; ++i) ranks.barrier({"together", {}})->wait();
  const auto tensor = torch::ones({1234});
  if (is_rank_1())
    ranks.barrier({"optimizer", {}})->wait();
  else
    ranks.all_reduce(tensor, ReduceOp::kSum, {"gradients", {}})->wait();
}

TEST(ALocaleWithSeparators, LeavesErrorsAsTheyAre) {
  for (const char* backend : {"shm", "gloo"}) {
    SCOPED_TRACE(backend);
    auto ranks = start_ranks("differ_with_separators", 2, {{"BACKEND", backend}});
    expect_ends(ranks, 2, 1,
                {"all_reduce(sum) of 'gradients' (#22), 4936 bytes of Float", "barrier of 'optimizer' (#22)"});
  }
}

}  // namespace
}  // namespace fsdp::test
