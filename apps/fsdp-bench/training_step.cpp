#include "training_step.h"

#include <fsdp/process_group.h>
#include <torch/torch.h>

#include <chrono>

#include "models/gpt.h"
#include "statistics.h"

namespace bench {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds(Clock::duration duration) { return std::chrono::duration<double, std::milli>(duration).count(); }

}  // namespace

at::Tensor batch_of(const StepArguments& arguments, int64_t step) {
  torch::manual_seed(static_cast<uint64_t>(100 + step));
  const auto joined =
      torch::randint(arguments.vocab, {fsdp::world_size() * arguments.batch, arguments.seq + 1}, torch::kInt64);
  return joined.narrow(0, fsdp::rank() * arguments.batch, arguments.batch);
}

Step train_step(Trainee& trainee, const at::Tensor& batch, const std::function<void()>& after_backward) {
  const int64_t seq = batch.size(1) - 1;
  const auto start = Clock::now();
  trainee.optimizer->zero_grad();
  const auto loss = models::next_token_loss(trainee.forward(batch.narrow(1, 0, seq)), batch.narrow(1, 1, seq));
  const auto forward_end = Clock::now();
  loss.backward();
  const auto backward_end = Clock::now();
  after_backward();
  const auto optimizer_start = Clock::now();
  trainee.optimizer->step();
  const auto end = Clock::now();
  return {.times = {.forward = milliseconds(forward_end - start),
                    .backward = milliseconds(backward_end - forward_end),
                    .optimizer = milliseconds(end - optimizer_start)},
          .loss = loss.detach()};
}

double median_after_warm_up(const std::vector<double>& values) {
  return median({values.begin() + kWarmUpSteps, values.end()});
}

}  // namespace bench
