#include "training.h"

#include <fsdp/metrics.h>
#include <torch/torch.h>

#include <algorithm>

namespace mnist {
namespace {

constexpr size_t kWorkers = 2;

auto batches_of(Share& share) {
  return torch::data::make_data_loader(
      share.dataset, share.sampler,
      torch::data::DataLoaderOptions(static_cast<size_t>(share.batch_size)).workers(kWorkers));
}

torch::Tensor on(c10::Device device, const torch::Tensor& tensor) { return tensor.to(device, /*non_blocking=*/true); }

torch::Tensor output_of(Model& model, const torch::Tensor& images, c10::Device device,
                        const frame::PrecisionFlags& precision) {
  const frame::Autocast autocast(precision, device);
  return model(on(device, images));
}

torch::Tensor loss_sum(const torch::Tensor& output, const torch::Tensor& target) {
  return torch::nll_loss(output, target, /*weight=*/{}, at::Reduction::Sum);
}

}  // namespace

double train_epoch(Model& model, torch::optim::Optimizer& optimizer, fsdp::GradScaler& scaler, Share& share, int64_t epoch,
                   const frame::PrecisionFlags& precision) {
  model->train();
  share.sampler.set_epoch(static_cast<size_t>(epoch));
  fsdp::RunningSums sums(2, share.device);
  const auto batches = batches_of(share);
  for (auto& batch : *batches) {
    optimizer.zero_grad();
    const auto output = output_of(model, batch.data, share.device, precision);
    const auto loss = loss_sum(output, on(share.device, batch.target));
    // Backward takes the mean over the ranks; the loss of the joined batch is the sum.
    scaler.scale(loss * fsdp::world_size()).backward();
    scaler.step(optimizer);
    scaler.update();
    sums.add({loss, torch::tensor(batch.target.size(0))});
  }
  const auto total = sums.over_ranks();
  return total[0] / total[1];
}

TestResult test(Model& model, Share& share, const frame::PrecisionFlags& precision) {
  const torch::NoGradGuard no_grad;
  model->eval();
  fsdp::RunningSums sums(3, share.device);
  auto left = static_cast<int64_t>(share.sampler.counted());
  const auto batches = batches_of(share);
  for (auto& batch : *batches) {
    // Every rank runs the same number of batches; images at the end that another rank counts are left out.
    const int64_t counted = std::min(left, batch.target.size(0));
    left -= counted;
    const auto output = output_of(model, batch.data, share.device, precision).narrow(0, 0, counted);
    const auto target = on(share.device, batch.target).narrow(0, 0, counted);
    sums.add({loss_sum(output, target), output.argmax(1).eq(target).sum(), torch::tensor(counted)});
  }
  const auto total = sums.over_ranks();
  return {total[0] / total[2], static_cast<int64_t>(total[1]), static_cast<int64_t>(total[2])};
}

}  // namespace mnist
