// mnist's training: network and optimizer, sharded against the unsharded oracle.

#include "models/convnet.h"
#include "support/oracle.h"

namespace fsdp::test {
namespace {

// In double precision: with a learning rate of 1 a difference in the last digit grows tenfold every few steps, which
// leaves nothing to compare in float.
TEST(ConvNetTraining, SixtyStepsOfAdadeltaEqualTheUnshardedRun) {
  Training<models::ConvNet> training;
  training.steps = 60;
  training.build = [] { return std::make_shared<models::ConvNet>(/*drops_out=*/false); };
  training.shard = [](models::ConvNet& net) {
    fully_shard(*net.fc1);
    return fully_shard(static_cast<torch::nn::Module&>(net));
  };
  training.loss = [](models::ConvNet& net, const Batch& batch) {
    return torch::nll_loss(net.forward(samples(batch, {1, 28, 28})), labels(batch, {}, 10));
  };
  training.optimizer = [](auto parameters) { return std::make_unique<optim::Adadelta>(parameters); };
  training.tolerance = 1e-9;
  for (int world : worlds_up_to(2)) expect_training_equals_unsharded(training, world);
}

}  // namespace
}  // namespace fsdp::test
