#pragma once
/// \file
/// Distribution of a data set's samples over ranks.

#include <fsdp/process_group.h>
#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp::data {

/// \addtogroup data
/// \{

/// How samples are distributed.
struct SamplerOptions {
  /// Whether each epoch has a new random order; otherwise the data set's order.
  bool shuffle = true;
  /// Seed of the order; must be the same on every rank.
  uint64_t seed = 0;
  /// The ranks that share the samples; null: the default process group.
  std::shared_ptr<ProcessGroup> process_group = nullptr;
};

/// Distributes the samples of a data set over the ranks in turn, the same number to each, for LibTorch's data loader.
/// The batches of all ranks in one step together are the batch that a single rank would see.
///
/// If the number of ranks does not divide the number of samples, some ranks end with samples that other ranks have too,
/// so that all ranks run equally many batches. Only the first `counted()` samples of a rank should enter a metric; then
/// every sample counts exactly once, even with fewer samples than ranks. (LibTorch's distributed samplers count some
/// twice or omit some.)
///
/// The order is that of Python's torch.utils.data.DistributedSampler with the same seed: the permutation for `seed +
/// epoch`. Not collective. A data loader copies the sampler, so call set_epoch before you make the loader. Throws
/// UsageError if the default group is needed and does not exist.
///
///     fsdp::data::DistributedSampler sampler(*dataset.size(), {.seed = 1});
///     sampler.set_epoch(epoch);
///     auto batches = torch::data::make_data_loader(dataset, sampler, batch_size);
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  /// Makes a sampler of `size` samples.
  explicit DistributedSampler(size_t size, const SamplerOptions& options = {});

  /// Sets the order of the next pass.
  void set_epoch(size_t epoch);
  /// Number of samples that each rank sees in a pass.
  size_t size() const;
  /// Number of this rank's samples, from the first on, that count in metrics.
  size_t counted() const;

  /// Starts a pass, over `new_size` samples if given.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  /// The next up to `batch_size` samples of this rank; nullopt at the end of a pass.
  std::optional<std::vector<size_t>> next(size_t batch_size) override;
  /// Saves the epoch and the position in the pass.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Continues from a saved position; the rank and the number of ranks must be the same.
  void load(torch::serialize::InputArchive& archive) override;

 private:
  void deal();

  size_t all_;
  bool shuffle_;
  uint64_t seed_;
  size_t world_size_, rank_;
  size_t epoch_ = 0;
  std::vector<size_t> own_;  // this rank's samples in their order
  size_t taken_ = 0;
};

/// \}

}  // namespace fsdp::data
#pragma GCC visibility pop
