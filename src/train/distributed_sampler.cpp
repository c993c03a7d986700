#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>
#include <fsdp/samplers.h>
#include <torch/serialize/archive.h>

#include <algorithm>

namespace fsdp::data {
namespace {

at::Tensor order_of(size_t samples, bool shuffle, uint64_t seed) {
  const auto count = static_cast<int64_t>(samples);
  if (!shuffle) return at::arange(count, at::kLong);
  return at::randperm(count, at::detail::createCPUGenerator(seed), at::kLong);
}

}  // namespace

DistributedSampler::DistributedSampler(size_t size, const SamplerOptions& options)
    : all_(size), shuffle_(options.shuffle), seed_(options.seed) {
  const auto ranks = options.process_group ? options.process_group : default_process_group();
  world_size_ = static_cast<size_t>(ranks->world_size());
  rank_ = static_cast<size_t>(ranks->rank());
  deal();
}

void DistributedSampler::set_epoch(size_t epoch) {
  epoch_ = epoch;
  deal();
}

size_t DistributedSampler::size() const { return (all_ + world_size_ - 1) / world_size_; }

size_t DistributedSampler::counted() const { return (all_ + world_size_ - 1 - rank_) / world_size_; }

void DistributedSampler::deal() {
  taken_ = 0;
  const auto order = order_of(all_, shuffle_, seed_ + epoch_);
  const auto* samples = order.const_data_ptr<int64_t>();
  own_.clear();
  for (size_t i = 0; i < size(); ++i) own_.push_back(static_cast<size_t>(samples[(rank_ + i * world_size_) % all_]));
}

void DistributedSampler::reset(std::optional<size_t> new_size) {
  if (!new_size || *new_size == all_) {
    taken_ = 0;
    return;
  }
  all_ = *new_size;
  deal();
}

std::optional<std::vector<size_t>> DistributedSampler::next(size_t batch_size) {
  const size_t count = std::min(batch_size, own_.size() - taken_);
  if (count == 0) return std::nullopt;
  const auto first = own_.begin() + static_cast<ptrdiff_t>(taken_);
  taken_ += count;
  return std::vector<size_t>(first, first + static_cast<ptrdiff_t>(count));
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("epoch", at::tensor(static_cast<int64_t>(epoch_)), /*is_buffer=*/true);
  archive.write("taken", at::tensor(static_cast<int64_t>(taken_)), /*is_buffer=*/true);
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  at::Tensor epoch, taken;
  archive.read("epoch", epoch, /*is_buffer=*/true);
  archive.read("taken", taken, /*is_buffer=*/true);
  set_epoch(static_cast<size_t>(epoch.item<int64_t>()));
  taken_ = std::min(static_cast<size_t>(taken.item<int64_t>()), own_.size());
}

}  // namespace fsdp::data
