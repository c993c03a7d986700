// Tests that if a rank is killed in the middle of training, the others end with a PeerLost that names it.

#include <signal.h>

#include <iostream>

#include "misuse/net.h"
#include "process/ranks.h"
#include "support/axes.h"
#include "support/backend.h"

namespace fsdp::test {
namespace {

// Kills this rank if the environment tells it to die at `place`.
void maybe_die(const std::string& place) {
  const char *victim = std::getenv("VICTIM"), *where = std::getenv("PLACE");
  if (victim != nullptr && where == place && std::stoi(victim) == rank()) raise(SIGKILL);
}

Group shard_and_maybe_die(MisuseNetImpl& net) {
  FullyShardOptions options;
  options.auto_wrap_policy = [](const WrapCandidate& candidate) {
    if (candidate.name == "down") maybe_die("fully_shard");
    return candidate.module.as<torch::nn::LinearImpl>() != nullptr;
  };
  const char* const replicas = std::getenv("REPLICAS");
  if (replicas == nullptr) return fully_shard(static_cast<torch::nn::Module&>(net), options);
  return shard_over(placement_over({world_size() / std::stoi(replicas), std::stoi(replicas)}), module_tree(net),
                    options);
}

void train_and_maybe_die() {
  init_process_group({.backend = test_backend(), .timeout = std::chrono::seconds(30)});
  torch::manual_seed(7);
  auto net = std::make_shared<MisuseNetImpl>();
  net->to(torch::kDouble);
  auto group = shard_and_maybe_die(*net);
  torch::optim::AdamW optimizer(net->parameters());
  for (int step = 0; step < 1000; ++step) {
    if (step == 2) {
      net->on_hidden = [](const torch::Tensor& h) {
        maybe_die("forward");
        h.register_hook([](const torch::Tensor&) { maybe_die("backward"); });
        return h;
      };
    }
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      ForwardScope scope(group);
      loss = small_loss(*net, share(step));
    }
    loss.backward();
    if (step == 2 && std::getenv("PLACE") == std::string("clipping")) {
      maybe_die("clipping");
      clip_grad_norm_(group, 1.0);
    }
    if (step == 2) maybe_die("optimizer");
    optimizer.step();
  }
}

PROCESS_CASE(train_until_a_rank_dies) {
  try {
    train_and_maybe_die();
  } catch (const PeerLost& error) {
    std::cout << "PeerLost " << error.rank() << ": " << error.what_without_backtrace() << std::endl;
    throw;
  }
}

struct Place {
  std::string name;
  int world, victim;
  const char* replicas = "";
};

class CommDeathInTraining : public testing::TestWithParam<Place> {};

TEST_P(CommDeathInTraining, IsNamedByEverySurvivorWithinTheTimeout) {
  const auto& [place, world, victim, replicas] = GetParam();
  const bool has_replicas = *replicas != '\0';
  auto ranks = start_ranks("train_until_a_rank_dies", world,
                           {{"PLACE", place}, {"VICTIM", std::to_string(victim)}, {"REPLICAS", replicas}});
  EXPECT_EQ(ranks.wait(victim).signal, SIGKILL) << ranks.wait(victim).output;
  for (int r = 0; r < world; ++r) {
    if (r == victim) continue;
    std::vector<std::string> parts{str_cat("PeerLost ", victim, ": [fsdp rank ", r, '/', world)};
    if (!has_replicas) parts.insert(parts.end(), {"ast operations: ", "start all ranks again"});
    expect_end(ranks, r, 1, parts);
    // Ranks that share no axis with the lost rank learn of it from ranks that do.
    EXPECT_THAT(ranks.wait(r).output, testing::ContainsRegex(str_cat("rank ", victim, "(, [^.]*,)? is lost")));
  }
}

// In backward, sums over the replicas are in flight. In clipping, only the ranks of one axis wait for the lost one.
INSTANTIATE_TEST_SUITE_P(Ranks, CommDeathInTraining,
                         testing::Values(Place{"fully_shard", 2, 1}, Place{"forward", 2, 0}, Place{"backward", 3, 1},
                                         Place{"optimizer", 2, 1}, Place{"backward", 2, 1, "2"},
                                         Place{"backward", 4, 3, "2"}, Place{"clipping", 4, 3, "2"}),
                         [](const auto& place) {
                           return str_cat(place.param.name, "_of_", place.param.victim, "_of_", place.param.world);
                         });

}  // namespace
}  // namespace fsdp::test
