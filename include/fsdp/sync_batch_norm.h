#pragma once
/// \file
/// Batch normalization over the batches of all ranks.

#include <fsdp/process_group.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <iosfwd>
#include <memory>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup training
/// \{

/// Makes every BatchNorm1d, 2d and 3d under `module` one over the ranks of `process_group` (null: the default one):
/// in training its forward, its gradients and its running statistics are those of one BatchNorm on the joined batch of
/// all ranks. Returns how many there are. The modules stay where they are, with the same parameters and buffers, so
/// neither the model nor its checkpoints change, and any way to call them is seen: `bn->forward(x)` in a user's class,
/// a Sequential, torch::nn::functional::batch_norm with the module's `running_mean`.
///
///     Net net;
///     fsdp::convert_sync_batchnorm(*net);
///     auto model = fsdp::fully_shard(net);
///
/// Ranks may have batches of different sizes, and of none. Statistics are merged in fp64 in rank order (T. F. Chan,
/// G. H. Golub and R. J. LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample Variances, 1979,
/// (2.1)); inputs of lower precision are summed in fp32. In forward a rank sends 2 * channels + 1 numbers of 8 bytes
/// for each module, in backward 2 * channels where the input requires a gradient. In evaluation nothing is exchanged:
/// without running statistics a module then takes those of this rank's batch, as PyTorch's does.
///
/// Collective, before or after fully_shard. So are, in training, forward and backward of each converted module: all
/// ranks run the same ones in the same order, else Mismatch. In fsdp::join the batch of a rank without data is no part
/// of the joined batch, if `process_group` is the model's. Not converted are copies by `Module::clone`, a module after
/// `reset()`, and TorchScript's modules. A rank whose batch has exactly one value for each channel gets torch's error
/// before fsdp is asked: there, use SyncBatchNorm. A second derivative through it is a UsageError.
int64_t convert_sync_batchnorm(torch::nn::Module& module, const std::shared_ptr<ProcessGroup>& process_group = nullptr);

/// The same as a module of one's own model, for inputs of sizes [N, channels, ...]. Parameters and buffers, their names
/// and its options are BatchNorm's. Collective in training: forward, and backward as above. Throws UsageError for other
/// sizes, and in training on every rank if there is but one value for each channel on all ranks together. Its errors
/// call it "SyncBatchNorm".
///
///     auto norm = register_module("norm", fsdp::SyncBatchNorm(64));
class SyncBatchNormImpl : public torch::nn::NormImplBase<0, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  /// Of so many channels, over the default group.
  explicit SyncBatchNormImpl(int64_t num_features) : SyncBatchNormImpl(torch::nn::BatchNormOptions(num_features)) {}
  /// `process_group`: whose batches are one; null: the default group.
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& options,
                             const std::shared_ptr<ProcessGroup>& process_group = nullptr);

  /// Normalises each channel; the result has the sizes of `input`.
  torch::Tensor forward(const torch::Tensor& input);
  /// Prints its name and its options.
  void pretty_print(std::ostream& stream) const override;

 protected:
  /// Throws UsageError unless the sizes are [N, channels, ...].
  void _check_input_dim(const torch::Tensor& input) override;

 private:
  std::shared_ptr<ProcessGroup> process_group_;
};
/// The holder of SyncBatchNormImpl.
TORCH_MODULE(SyncBatchNorm);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
