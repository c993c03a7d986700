#pragma once
/// \file
/// What a model and an optimizer hold, by name: this rank's rows, or whole tensors, in memory or in one safetensors
/// file. Names are the module's, as `named_parameters()` and `named_buffers()` have them; a tensor that has several
/// names comes once, by the first. Outside scopes and backwards; for training that goes on see checkpoint.h.

#include <fsdp/checkpoint.h>
#include <fsdp/group.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace fsdp {

/// Rows [first_row, first_row + rows.size(0)) of a tensor of sizes `sizes`. Of a tensor without dimensions that is
/// sharded, `rows` has one element or none; what is not sharded is there whole, on every rank.
struct StateEntry {
  std::string name;
  std::vector<int64_t> sizes;
  int64_t first_row = 0;
  /// A view: it has what the model or the optimizer has, also later. On their device, without autograd.
  at::Tensor rows;
};

/// This rank's rows of parameters, and buffers. Nothing is copied or communicated. Throws UsageError in a scope.
///
///     for (const auto& [name, sizes, first_row, rows] : fsdp::state_dict(model)) std::cout << name << rows.sizes();
std::vector<StateEntry> state_dict(const Group& model);
std::vector<StateEntry> state_dict(torch::nn::Module& model);
/// The same of an optimizer's state of each parameter: "optim.state.head.weight.exp_avg". Throws UsageError for
/// optimizers that save_checkpoint does not take.
std::vector<StateEntry> state_dict(const torch::optim::Optimizer& optimizer, const Group& model);
std::vector<StateEntry> state_dict(const torch::optim::Optimizer& optimizer, torch::nn::Module& model);

/// Whole parameters, and buffers, on the CPU of rank 0; empty on the others. They are gathered one after the other, so
/// another rank holds one whole parameter at a time. Collective. Throws UsageError in a scope, and what Work::wait
/// throws.
std::vector<std::pair<std::string, at::Tensor>> full_state_dict(const Group& model);
std::vector<std::pair<std::string, at::Tensor>> full_state_dict(torch::nn::Module& model);

/// The same to a file that rank 0 writes, which never holds more than one whole parameter either. What had the name
/// before is replaced when the new file is complete. Python opens it with safetensors. Collective. Throws UsageError in
/// a scope, and an Error on every rank if the file cannot be written.
///
///     fsdp::save_safetensors("model.safetensors", model);
void save_safetensors(const std::string& path, const Group& model);
void save_safetensors(const std::string& path, torch::nn::Module& model);

/// Reads a file of whole tensors, of any origin: each rank its own rows. Values are converted where the dtype differs.
/// Returns what was not strict (LoadedCheckpoint::differing). Collective. Throws UsageError in a scope; an Error on
/// every rank where something is missing or does not fit (see LoadOptions), before anything is changed, or where the
/// file cannot be read.
std::vector<std::string> load_safetensors(const std::string& path, const Group& model, const LoadOptions& options = {});
std::vector<std::string> load_safetensors(const std::string& path, torch::nn::Module& model,
                                          const LoadOptions& options = {});

}  // namespace fsdp
