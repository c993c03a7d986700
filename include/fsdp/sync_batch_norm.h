#pragma once
/// \file
/// Batch normalisation over the batches of all ranks.

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

/// Makes every BatchNorm1d, BatchNorm2d and BatchNorm3d under `module` normalise over the ranks of `process_group` (if
/// null, the default process group): in training, outputs, gradients and running statistics are those of one BatchNorm
/// on the joined batch of all ranks. Returns the number of converted modules. Modules, parameters and buffers stay the
/// same objects, so the model and its checkpoints do not change. Every way to call the modules works: `bn->forward(x)`
/// in your own class, a Sequential, or torch::nn::functional::batch_norm with the module's `running_mean`.
///
///     Net net;
///     fsdp::convert_sync_batchnorm(*net);
///     auto model = fsdp::fully_shard(net);
///
/// Ranks may have batches of different sizes, even empty ones. Ranks merge their statistics in fp64 in rank order (T.
/// F. Chan, G. H. Golub and R. J. LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample Variances,
/// 1979, (2.1)); inputs of lower precision are summed in fp32. For each module a rank sends 2 * channels + 1 numbers of
/// 8 bytes in forward, and 2 * channels in backward if the input requires a gradient. In evaluation mode nothing is
/// exchanged; a module without running statistics then uses the statistics of this rank's batch, as in PyTorch.
///
/// Collective; call this function before or after fully_shard. In training, forward and backward of each converted
/// module are collective too: all ranks must run the same modules in the same order; otherwise they throw Mismatch. In
/// fsdp::join, ranks without data do not contribute if `process_group` is the model's. Copies by `Module::clone`,
/// modules after `reset()`, and TorchScript modules are not converted. If a rank's batch has exactly one value per
/// channel, LibTorch throws its own error on this rank; use SyncBatchNorm for such batches. Second derivatives throw
/// UsageError.
int64_t convert_sync_batchnorm(torch::nn::Module& module, const std::shared_ptr<ProcessGroup>& process_group = nullptr);

/// Batch norm over the batches of all ranks, as a module, for inputs of sizes [N, channels, ...]. Parameters, buffers,
/// their names and options are those of BatchNorm. Forward and backward are collective in training. Forward throws
/// UsageError for other sizes and, in training, on every rank if all ranks together have only one value per channel.
/// Errors call the module "SyncBatchNorm".
///
///     auto norm = register_module("norm", fsdp::SyncBatchNorm(64));
class SyncBatchNormImpl : public torch::nn::NormImplBase<0, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  /// Makes a batch norm of `num_features` channels over the default process group.
  explicit SyncBatchNormImpl(int64_t num_features) : SyncBatchNormImpl(torch::nn::BatchNormOptions(num_features)) {}
  /// Makes a batch norm over the ranks of `process_group`; if null, the default process group.
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& options,
                             const std::shared_ptr<ProcessGroup>& process_group = nullptr);

  /// Normalises each channel. The result has the sizes of `input`.
  torch::Tensor forward(const torch::Tensor& input);
  /// Prints the name and the options.
  void pretty_print(std::ostream& stream) const override;

 protected:
  /// Throws UsageError unless the sizes are [N, channels, ...].
  void _check_input_dim(const torch::Tensor& input) override;

 private:
  std::shared_ptr<ProcessGroup> process_group_;
};
/// Holder of SyncBatchNormImpl.
TORCH_MODULE(SyncBatchNorm);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
