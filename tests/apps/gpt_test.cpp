// Sharded training of the headline model against the unsharded oracle.

#include "models/gpt.h"
#include "support/oracle.h"

namespace fsdp::test {
namespace {

Training<models::GPTImpl> gpt() {
  constexpr models::GPTConfig kConfig{.vocab = 97, .seq = 12, .dim = 24, .layers = 3, .heads = 3};
  Training<models::GPTImpl> training;
  training.steps = 10;
  training.build = [=] { return std::make_shared<models::GPTImpl>(kConfig); };
  training.shard = [](models::GPTImpl& net) {
    for (auto& block : *net.blocks) fully_shard(*block);
    return fully_shard(static_cast<torch::nn::Module&>(net));
  };
  training.loss = [=](models::GPTImpl& net, const Batch& batch) {
    const auto tokens = labels(batch, {kConfig.seq + 1}, kConfig.vocab);
    return net.forward(tokens.narrow(1, 0, kConfig.seq), tokens.narrow(1, 1, kConfig.seq));
  };
  return training;
}

TEST(GptTraining, TenStepsEqualTheUnshardedRun) {
  for (int world : worlds_up_to(4)) expect_training_equals_unsharded(gpt(), world);
}

TEST(GptTraining, TenStepsInFloat32StayWithinItsRounding) {
  auto training = gpt();
  in_float32(training);
  for (int world : worlds_up_to(4)) expect_training_equals_unsharded(training, world);
}

}  // namespace
}  // namespace fsdp::test
