#pragma once
/// \file
/// What a model and an optimizer hold, by name: this rank's rows, or whole tensors, in memory or in one safetensors
/// file. Names are the module's, as `named_parameters()` and `named_buffers()` have them; a tensor that has several
/// names comes once, by the first. Outside scopes and backwards, and of tensors that are not on the meta device: else a
/// UsageError. For training that goes on see checkpoint.h.

#include <fsdp/checkpoint.h>
#include <fsdp/group.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup checkpoints
/// \{

/// Rows [first_row, first_row + rows.size(0)) of a tensor of sizes `sizes`. They may be shorter than those of dim 0
/// (see LocalRowRange): a row has the sizes rows.sizes().slice(1), and rows are numbered in row-major order. Of a
/// tensor without dimensions that is sharded, `rows` has one element or none; what is not sharded is there whole, on
/// every rank.
struct StateEntry {
  std::string name;            ///< by which checkpoints and files know it
  std::vector<int64_t> sizes;  ///< of the whole tensor
  int64_t first_row = 0;       ///< the number of its first row here, from 0
  /// A view: it has what the model or the optimizer has, also later. On their device, without autograd.
  at::Tensor rows;
};

/// This rank's rows of parameters, and buffers. Nothing is copied or communicated; not collective. Throws UsageError in
/// a scope.
///
///     for (const auto& [name, sizes, first_row, rows] : fsdp::state_dict(model)) std::cout << name << rows.sizes();
[[nodiscard]] std::vector<StateEntry> state_dict(const Group& model);
/// The same of a module, sharded or not.
[[nodiscard]] std::vector<StateEntry> state_dict(torch::nn::Module& model);
/// The same of an optimizer's state of each parameter: "optim.state.head.weight.exp_avg". Throws UsageError for
/// optimizers that save_checkpoint does not take.
[[nodiscard]] std::vector<StateEntry> state_dict(const torch::optim::Optimizer& optimizer, const Group& model);
/// The same of an optimizer of a module's parameters, sharded or not.
[[nodiscard]] std::vector<StateEntry> state_dict(const torch::optim::Optimizer& optimizer, torch::nn::Module& model);

/// Whole parameters, and buffers, on the CPU of rank 0; empty on the others. They are gathered one after the other, so
/// another rank holds one whole parameter at a time. Collective. Throws UsageError in a scope, and what Work::wait
/// throws.
///
///     for (const auto& [name, tensor] : fsdp::full_state_dict(model)) write(name, tensor);  // on rank 0
[[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> full_state_dict(const Group& model);
/// The same of a module, sharded or not.
[[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> full_state_dict(torch::nn::Module& model);

/// Loads whole tensors that rank 0 has into a model that is sharded: what full_state_dict returned, or what was read
/// from anywhere. What other ranks give is ignored. Rank 0 broadcasts one tensor after the other, a few MiB at a
/// time, of which each rank keeps its rows: nobody but rank 0 holds a whole one. Values are converted where the
/// dtype differs; they lie on any device of rank 0. Returns what was not strict (LoadedCheckpoint::differing).
///
/// Collective. Throws UsageError in a scope; an Error on every rank where something is missing or does not fit (see
/// LoadOptions), or a tensor has no values or a dtype that files do not have, before anything is changed;
/// what Work::wait throws, after which the model may be loaded in part.
///
///     std::vector<std::pair<std::string, at::Tensor>> entries;
///     if (fsdp::rank() == 0) entries = read_pretrained();
///     fsdp::load_full_state_dict(entries, model);
std::vector<std::string> load_full_state_dict(const std::vector<std::pair<std::string, at::Tensor>>& entries,
                                              const Group& model, const LoadOptions& options = {});
/// The same into a module, sharded or not.
std::vector<std::string> load_full_state_dict(const std::vector<std::pair<std::string, at::Tensor>>& entries,
                                              torch::nn::Module& model, const LoadOptions& options = {});

/// What full_state_dict returns, to a file that rank 0 writes, which never holds more than one whole parameter either.
/// What had the name before is replaced when the new file is complete. Python opens it with safetensors. Collective.
/// Throws UsageError in a scope, and an Error on every rank if the file cannot be written.
///
///     fsdp::save_safetensors("model.safetensors", model);
void save_safetensors(const std::string& path, const Group& model);
/// The same of a module, sharded or not.
void save_safetensors(const std::string& path, torch::nn::Module& model);

/// Reads a file of whole tensors, of any origin: each rank its own rows. Values are converted where the dtype differs.
/// Returns what was not strict (LoadedCheckpoint::differing). Collective. Throws UsageError in a scope; an Error on
/// every rank where something is missing or does not fit (see LoadOptions), before anything is changed, or where the
/// file cannot be read.
///
///     fsdp::load_safetensors("pretrained.safetensors", model, {.strict = false, .may_differ = {"head."}});
std::vector<std::string> load_safetensors(const std::string& path, const Group& model, const LoadOptions& options = {});
/// The same into a module, sharded or not.
std::vector<std::string> load_safetensors(const std::string& path, torch::nn::Module& model,
                                          const LoadOptions& options = {});

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
