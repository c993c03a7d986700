#include <ATen/ops/empty.h>
#include <fsdp/sync_batch_norm.h>

#include <ios>
#include <ostream>
#include <string>
#include <unordered_set>

#include "comm/core/check.h"
#include "modules/synced_batch_norm.h"
#include "modules/synced_statistics.h"

namespace fsdp {
namespace {

std::shared_ptr<ProcessGroup> or_default(const std::shared_ptr<ProcessGroup>& group) {
  return group ? group : default_process_group();
}

// Converts `module` if it is a BatchNorm of this type. Returns true if it is.
template <class BatchNorm>
bool convert(torch::nn::Module& module, const std::string& name, const std::shared_ptr<ProcessGroup>& ranks) {
  auto* norm = dynamic_cast<BatchNorm*>(&module);
  if (norm == nullptr) return false;
  if (ranks->world_size() == 1) return true;  // one rank needs no conversion
  if (!norm->running_mean.defined()) norm->running_mean = at::empty({0});
  modules::sync_statistics(norm->running_mean, module.weak_from_this(), modules::sync_group_of(ranks, name));
  return true;
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options_,
                                     const std::shared_ptr<ProcessGroup>& process_group)
    : NormImplBase(options_), process_group_(or_default(process_group)) {}

void SyncBatchNormImpl::_check_input_dim(const torch::Tensor& input) {
  require(input.dim() >= 2 && input.size(1) == options.num_features(), process_group_->where("SyncBatchNorm"),
          "expected an input of sizes [N, ", options.num_features(), ", ...], found ", input.sizes());
}

torch::Tensor SyncBatchNormImpl::forward(const torch::Tensor& input) {
  _check_input_dim(input);
  const bool is_tracked = running_mean.defined();
  double momentum = options.momentum().value_or(0.0);
  if (is_training() && is_tracked) {
    num_batches_tracked += 1;
    if (!options.momentum()) momentum = 1.0 / num_batches_tracked.item<double>();
  }
  if (is_training() && process_group_->world_size() > 1)
    return modules::synced_batch_norm({input, weight, bias, running_mean, running_var, momentum, options.eps()},
                                      modules::sync_group_of(process_group_, "SyncBatchNorm"));
  return torch::nn::functional::detail::batch_norm(input, running_mean, running_var, weight, bias,
                                                   is_training() || !is_tracked, momentum, options.eps());
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "fsdp::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ", momentum=";
  if (options.momentum())
    stream << *options.momentum();
  else
    stream << "none";
  stream << ", affine=" << options.affine() << ", track_running_stats=" << options.track_running_stats() << ")";
}

int64_t convert_sync_batchnorm(torch::nn::Module& module, const std::shared_ptr<ProcessGroup>& process_group) {
  namespace nn = torch::nn;
  const auto ranks = or_default(process_group);
  // The first call of sync_group_of is collective, so every rank calls it here, even if it has no batch norm.
  if (ranks->world_size() > 1) modules::sync_group_of(ranks, "");
  std::unordered_set<const nn::Module*> converted;
  module.apply([&](const std::string& path, nn::Module& child) {
    const std::string name = path.empty() ? child.name() : path;
    if (convert<nn::BatchNorm1dImpl>(child, name, ranks) || convert<nn::BatchNorm2dImpl>(child, name, ranks) ||
        convert<nn::BatchNorm3dImpl>(child, name, ranks))
      converted.insert(&child);
  });
  return static_cast<int64_t>(converted.size());
}

}  // namespace fsdp
