#include "training_step.h"

#include <fsdp/process_group.h>
#include <torch/torch.h>

#include "frame/moment.h"
#include "models/gpt.h"
#include "statistics.h"

namespace bench {
namespace {

double milliseconds(const frame::Moment& start, const frame::Moment& end) { return end.seconds_since(start) * 1e3; }

}  // namespace

at::Tensor batch_of(const StepArguments& arguments, int64_t step, c10::Device device) {
  torch::manual_seed(static_cast<uint64_t>(100 + step));
  const int shares = fsdp::world_size() / arguments.pipeline.ranks;
  const auto joined = torch::randint(arguments.vocab, {shares * arguments.batch, arguments.seq + 1}, torch::kInt64);
  return joined.narrow(0, fsdp::rank() % shares * arguments.batch, arguments.batch).to(device);
}

Step train_step(Trainee& trainee, const at::Tensor& batch, const std::function<void()>& after_backward) {
  const int64_t seq = batch.size(1) - 1;
  const frame::Moment start(batch.device());
  trainee.optimizer->zero_grad();
  const auto inputs = batch.narrow(1, 0, seq), targets = batch.narrow(1, 1, seq);
  at::Tensor loss;
  if (!trainee.run_stages) loss = models::next_token_loss(trainee.forward(inputs), targets);
  const frame::Moment forward_end(batch.device());
  if (trainee.run_stages)
    loss = trainee.run_stages(inputs, targets);
  else
    loss.backward();
  trainee.after_backward();
  const frame::Moment backward_end(batch.device());
  after_backward();
  const frame::Moment optimizer_start(batch.device());
  trainee.optimizer->step();
  const frame::Moment end(batch.device());
  return {.times = {.forward = milliseconds(start, forward_end),
                    .backward = milliseconds(forward_end, backward_end),
                    .optimizer = milliseconds(optimizer_start, end)},
          .loss = loss.detach()};
}

double median_after_warm_up(const std::vector<double>& values) {
  return median({values.begin() + kWarmUpSteps, values.end()});
}

}  // namespace bench
