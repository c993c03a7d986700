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

/// Options of DistributedSampler.
struct SamplerOptions {
  /// True if each epoch has a new random order. If false, each epoch has the data set's order.
  bool shuffle = true;
  /// Seed of the random orders; must be the same on every rank.
  uint64_t seed = 0;
  /// Ranks that share the samples; if null, the default process group.
  std::shared_ptr<ProcessGroup> process_group = nullptr;
};

/// Sampler for LibTorch's data loader that deals the samples of a data set to the ranks in turn, the same number to
/// each. The batches of all ranks in one step together are the batch that a single rank would see.
///
/// If the number of ranks does not divide the number of samples, the last samples of some ranks are samples that other
/// ranks have too, so that all ranks run equally many batches. Count only the first `counted()` samples of a rank in a
/// metric; every sample then counts exactly once, even with fewer samples than ranks. (LibTorch's distributed samplers
/// count some samples twice or omit some.)
///
/// The order is that of Python's torch.utils.data.DistributedSampler with the same seed: the permutation that `seed +
/// epoch` gives. Not collective. A data loader copies the sampler, so call set_epoch before you make the loader. Throws
/// UsageError if the default group is needed and does not exist.
///
///     fsdp::data::DistributedSampler sampler(*dataset.size(), {.seed = 1});
///     sampler.set_epoch(epoch);
///     auto batches = torch::data::make_data_loader(dataset, sampler, batch_size);
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  /// Makes a sampler of `size` samples.
  explicit DistributedSampler(size_t size, const SamplerOptions& options = {});

  /// Sets the epoch, which decides the order of the next pass.
  void set_epoch(size_t epoch);
  /// Returns the number of samples that each rank sees in a pass.
  size_t size() const;
  /// Returns the number of this rank's samples that count in metrics; they come first in a pass.
  size_t counted() const;

  /// Starts a pass, over `new_size` samples if given.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  /// Returns up to `batch_size` next samples of this rank, or nullopt at the end of a pass.
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
