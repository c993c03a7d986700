#pragma once
/// \file
/// Which samples of a data set a rank sees.

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

/// How samples are dealt out.
struct SamplerOptions {
  /// A new order in every epoch; otherwise the data set's.
  bool shuffle = true;
  /// The same on every rank.
  uint64_t seed = 0;
  /// The ranks that share the samples; unset: those of the default group.
  std::shared_ptr<ProcessGroup> process_group = nullptr;
};

/// Deals the samples of a data set out to the ranks one by one, equally many to each, for LibTorch's data loader. What
/// the ranks see in one step is then what one rank with the joined batch would see.
///
/// Where the number of ranks does not divide the data set's, some ranks see at their end a sample again that another
/// rank has, so that all of them run the same number of batches; only the first `counted()` of a rank's samples belong
/// in a metric. So every sample is counted on one rank, also if there are fewer samples than ranks. (LibTorch's
/// distributed samplers count some twice or leave some out.)
///
/// The order is that of Python's torch.utils.data.DistributedSampler with the same seed: the permutation of `seed +
/// epoch`. Not collective. A data loader takes a copy, so tell the epoch before one is made. Throws UsageError where it
/// needs the default group and there is none.
///
///     fsdp::data::DistributedSampler sampler(*dataset.size(), {.seed = 1});
///     sampler.set_epoch(epoch);
///     auto batches = torch::data::make_data_loader(dataset, sampler, batch_size);
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  /// Of `size` samples.
  explicit DistributedSampler(size_t size, const SamplerOptions& options = {});

  /// Decides on the next order; the loader begins it with its next pass.
  void set_epoch(size_t epoch);
  /// The samples that this rank sees in a pass, as many as every other rank.
  size_t size() const;
  /// How many of them, from the first on, are counted on this rank.
  size_t counted() const;

  /// Begins a pass, over `new_size` samples if it is given.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  /// Up to `batch_size` of this rank's samples; none at the end of a pass.
  std::optional<std::vector<size_t>> next(size_t batch_size) override;
  /// The epoch and how far the pass is.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Goes on from there, on the same rank of as many.
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
