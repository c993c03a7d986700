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

/// Makes every BatchNorm1d, 2d and 3d under `module` normalise over the ranks of `process_group` (null: the default
/// one): in training, outputs, gradients and running statistics are those of one BatchNorm on the joined batch of all
/// ranks. Returns the number of these modules. Modules, parameters and buffers stay in place, so the model and its
/// checkpoints do not change. Every way to call them works: `bn->forward(x)` in your own class, a Sequential, or
/// torch::nn::functional::batch_norm with the module's `running_mean`.
///
///     Net net;
///     fsdp::convert_sync_batchnorm(*net);
///     auto model = fsdp::fully_shard(net);
///
/// Ranks may have batches of different sizes, even empty ones. Statistics are merged in fp64 in rank order (T. F. Chan,
/// G. H. Golub and R. J. LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample Variances, 1979,
/// (2.1)); inputs of lower precision are summed in fp32. For each module a rank sends 2 * channels + 1 numbers of 8
/// bytes in forward, and 2 * channels in backward if the input requires a gradient. In evaluation nothing is exchanged;
/// without running statistics a module then uses those of this rank's batch, as in PyTorch.
///
/// Collective; call it before or after fully_shard. In training, forward and backward of each converted module are
/// collective too: all ranks must run the same ones in the same order, otherwise Mismatch. In fsdp::join, ranks without
/// data do not contribute if `process_group` is the model's. Copies by `Module::clone`, modules after `reset()`, and
/// TorchScript modules are not converted. A rank whose batch has exactly one value per channel gets LibTorch's own
/// error; use SyncBatchNorm there. Second derivatives throw UsageError.
int64_t convert_sync_batchnorm(torch::nn::Module& module, const std::shared_ptr<ProcessGroup>& process_group = nullptr);

/// The synchronised batch norm as a module, for inputs of sizes [N, channels, ...]. Parameters, buffers, their names
/// and options are those of BatchNorm. Forward and backward are collective in training. Throws UsageError for other
/// sizes and, in training, on every rank if all ranks together have only one value per channel. Errors call the module
/// "SyncBatchNorm".
///
///     auto norm = register_module("norm", fsdp::SyncBatchNorm(64));
class SyncBatchNormImpl : public torch::nn::NormImplBase<0, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  /// Makes a batch norm of `num_features` channels over the default process group.
  explicit SyncBatchNormImpl(int64_t num_features) : SyncBatchNormImpl(torch::nn::BatchNormOptions(num_features)) {}
  /// `process_group`: the ranks to normalise over; null: the default process group.
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& options,
                             const std::shared_ptr<ProcessGroup>& process_group = nullptr);

  /// Normalises each channel; the result has the sizes of `input`.
  torch::Tensor forward(const torch::Tensor& input);
  /// Prints the name and the options.
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
