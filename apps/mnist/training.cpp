#include "training.h"

#include <fsdp/metrics.h>
#include <torch/torch.h>

#include <algorithm>
#include <utility>

#include "frame/progress.h"
#include "report.h"

namespace mnist {
namespace {

constexpr size_t kWorkers = 2;

auto batches_of(Share& share) {
  return torch::data::make_data_loader(
      share.dataset, share.sampler,
      torch::data::DataLoaderOptions(static_cast<size_t>(share.batch_size)).workers(kWorkers));
}

torch::Tensor on(c10::Device device, const torch::Tensor& tensor) { return tensor.to(device, /*non_blocking=*/true); }

torch::Tensor loss_sum(const torch::Tensor& output, const torch::Tensor& target) {
  return torch::nll_loss(output, target, /*weight=*/{}, at::Reduction::Sum);
}

TestResult test(fsdp::Trainer& trainer, Model& model, Share& share) {
  auto left = static_cast<int64_t>(share.sampler.counted());
  const auto measure = [&](Model& net, torch::data::Example<>& batch) -> std::vector<torch::Tensor> {
    // Every rank runs the same number of batches. Images at the end that another rank already counts are left out.
    const int64_t counted = std::min(left, batch.target.size(0));
    left -= counted;
    const auto output = net(on(share.device, batch.data)).narrow(0, 0, counted);
    const auto target = on(share.device, batch.target).narrow(0, 0, counted);
    return {loss_sum(output, target), output.argmax(1).eq(target).sum(), torch::tensor(counted)};
  };
  const auto total = trainer.test(model, batches_of(share), measure);
  return {total[0] / total[2], static_cast<int64_t>(total[1]), static_cast<int64_t>(total[2])};
}

}  // namespace

std::vector<EpochResult> train(fsdp::Trainer& trainer, Model& model, torch::optim::Optimizer& optimizer, Share& images,
                               Share& tested, frame::StepMetrics& metrics, double gamma) {
  torch::optim::StepLR schedule(optimizer, /*step_size=*/1, gamma);
  schedule.step();  // LibTorch's first call does not change the rate. Python's schedules make this call themselves.
  std::vector<EpochResult> results;
  const auto batches = (static_cast<int64_t>(images.sampler.size()) + images.batch_size - 1) / images.batch_size;
  // On a terminal, progress is one line that changes. A file or a pipe gets only the results of the epochs.
  frame::Progress progress({.steps = trainer.options().epochs * batches,
                            .items_per_step = images.batch_size * fsdp::world_size(),
                            .items = "images",
                            .is_silent = fsdp::rank() != 0});
  fsdp::RunningSums sums(2, images.device);
  int64_t last_count = 0;  // number of images in this rank's last batch
  const auto on_step_end = [&](const fsdp::StepReport& report) {
    if (progress.is_due(report.place.step)) {
      const auto count = static_cast<double>(fsdp::world_size() * last_count);
      progress.show({report.place.step, report.loss.item<double>() / count, model.stats()});
    }
  };
  const auto on_epoch_end = [&](const fsdp::TrainingPlace& place) {
    const auto total = std::exchange(sums, fsdp::RunningSums(2, images.device)).over_ranks();
    auto& result = results.emplace_back(EpochResult{.loss = total[0] / total[1]});
    progress.note(epoch_text(place.epoch + 1, result.loss));
    metrics.note(place.epoch + 1, {{"loss", result.loss}}, model);
    progress.pause();
    result.test = test(trainer, model, tested);
    progress.note(test_text(result.test));
    metrics.note_beside(place.epoch + 1,
                        {{"test_loss", result.test.average_loss}, {"accuracy", result.test.accuracy()}});
    metrics.leave_out_time();
    schedule.step();
  };
  trainer.add({.on_step_end = on_step_end, .on_epoch_end = on_epoch_end});

  const auto data = [&](int64_t epoch) {
    images.sampler.set_epoch(static_cast<size_t>(epoch) + 1);
    return batches_of(images);
  };
  const auto loss_of = [&](Model& net, torch::data::Example<>& batch) {
    const auto loss = loss_sum(net(on(images.device, batch.data)), on(images.device, batch.target));
    last_count = batch.target.size(0);
    sums.add({loss, torch::tensor(batch.target.size(0))});
    return loss * fsdp::world_size();  // Backward averages over the ranks, but the loss of the joined batch is the sum.
  };
  trainer.fit(model, optimizer, data, loss_of);
  return results;
}

}  // namespace mnist
