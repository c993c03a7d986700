#include "frame/step_metrics.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <fsdp/process_group.h>

#include <algorithm>
#include <utility>

namespace frame {
namespace {

void append_bytes(fsdp::ScalarLog::Scalars& scalars, const fsdp::GroupStats& held) {
  const auto add = [&](const char* name, const fsdp::ByteCount& count) {
    scalars.emplace_back(std::string("bytes/") + name, static_cast<double>(count.current));
    scalars.emplace_back(std::string("peak_bytes/") + name, static_cast<double>(count.peak));
  };
  add("rows", held.rows);
  add("whole", held.whole);
  add("gradient", held.gradient);
  add("optimizer", held.optimizer);
  add("activation", held.activation);
}

}  // namespace

StepMetrics::StepMetrics(fsdp::ScalarLog log, int64_t items_per_step, std::string items, FlopsModel flops)
    : log_(std::move(log)), items_per_step_(items_per_step), items_(std::move(items)), flops_(flops) {
  if (is_on()) traffic_ = fsdp::traffic();
}

void StepMetrics::note(int64_t step, fsdp::ScalarLog::Scalars scalars, const fsdp::Group& model) {
  if (!is_on()) return;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - last_;
  last_ = Clock::now();
  const double per_second = static_cast<double>(items_per_step_) / seconds.count();
  scalars.emplace_back("step_seconds", seconds.count());
  scalars.emplace_back(items_ + "_per_second", per_second);
  if (flops_.per_token > 0 && flops_.peak_of_rank > 0)
    scalars.emplace_back("mfu", per_second * flops_.per_token / (flops_.peak_of_rank * fsdp::world_size()));
  append_bytes(scalars, model.stats());
  const auto moved = fsdp::traffic() - traffic_;
  traffic_ = fsdp::traffic();
  scalars.emplace_back("sent_bytes/between_hosts", static_cast<double>(moved.between_hosts.sent));
  scalars.emplace_back("sent_bytes/inside_host", static_cast<double>(moved.inside_host.sent));
  log_.write(step, scalars);
}

double measured_peak_flops(c10::Device device, c10::ScalarType dtype) {
  constexpr int64_t kSize = 768;
  constexpr int kRounds = 6;
  const at::NoGradGuard no_grad;
  const auto a = at::ones({kSize, kSize}, at::TensorOptions().device(device).dtype(dtype));
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto begun = std::chrono::steady_clock::now();
    const auto product = at::mm(a, a);
    product.select(0, 0).select(0, 0).item<double>();  // on a device, this waits for the product
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begun;
    best = std::max(best, 2.0 * kSize * kSize * kSize / seconds.count());
  }
  return best;
}

}  // namespace frame
