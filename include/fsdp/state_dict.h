#pragma once
/// \file
/// Functions that give the state of a model and an optimizer by name: this rank's rows, or whole tensors, in memory or
/// in a safetensors file. Names are those of `named_parameters()` and `named_buffers()`; a tensor with several names
/// appears once, under its first name. All functions throw UsageError in scopes and backwards and for tensors on the
/// meta device. Use checkpoint.h to resume training.

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

/// Rows [first_row, first_row + rows.size(0)) of a tensor whose sizes are `sizes`. A row may be shorter than a row of
/// dim 0 (see LocalRowRange): it has the sizes rows.sizes().slice(1), and the rows' numbers are in row-major order. For
/// a sharded scalar, `rows` has one element or none. Tensors that are not sharded are whole on every rank.
struct StateEntry {
  std::string name;            ///< name of the tensor in checkpoints and files
  std::vector<int64_t> sizes;  ///< sizes of the whole tensor
  int64_t first_row = 0;       ///< index of this rank's first row
  /// This rank's rows: a view, without autograd history, on the original device. Later changes of the model or
  /// optimizer change the view.
  at::Tensor rows;
};

/// Returns this rank's rows of parameters, and buffers, without copies. Not collective. Throws UsageError in a scope.
///
///     for (const auto& [name, sizes, first_row, rows] : fsdp::state_dict(model)) std::cout << name << rows.sizes();
[[nodiscard]] std::vector<StateEntry> state_dict(const Group& model);
/// Returns the rows of a module, sharded or not.
[[nodiscard]] std::vector<StateEntry> state_dict(torch::nn::Module& model);
/// Returns this rank's rows of an optimizer's state, with names such as "optim.state.head.weight.exp_avg". Throws
/// UsageError for optimizers that save_checkpoint does not support.
[[nodiscard]] std::vector<StateEntry> state_dict(const torch::optim::Optimizer& optimizer, const Group& model);
/// Returns the rows of the state of an optimizer of a module, sharded or not.
[[nodiscard]] std::vector<StateEntry> state_dict(const torch::optim::Optimizer& optimizer, torch::nn::Module& model);

/// Returns the whole parameters and the buffers as CPU tensors on rank 0, and an empty list on other ranks. Ranks
/// gather one parameter at a time, so the other ranks hold one whole parameter at a time. Collective. Throws UsageError
/// in a scope, and what Work::wait throws.
///
///     for (const auto& [name, tensor] : fsdp::full_state_dict(model)) write(name, tensor);  // on rank 0
[[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> full_state_dict(const Group& model);
/// Returns the whole tensors of a module, sharded or not.
[[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> full_state_dict(torch::nn::Module& model);

/// Loads whole tensors from rank 0, such as the result of full_state_dict, into a sharded model; `entries` of other
/// ranks are ignored. Rank 0 broadcasts one tensor after another, a few MiB at a time, and each rank keeps its rows, so
/// only rank 0 holds whole tensors. The tensors may be on any device of rank 0; their values are converted to the
/// model's dtypes. Returns the differences that LoadOptions allowed (LoadedCheckpoint::differing).
///
/// Collective. Throws UsageError in a scope. Throws Error on every rank, before anything is changed, if a tensor is
/// missing, does not fit (see LoadOptions), is on the meta device, or has a dtype that files do not support. Throws
/// what Work::wait throws; the model may then be partly loaded.
///
///     std::vector<std::pair<std::string, at::Tensor>> entries;
///     if (fsdp::rank() == 0) entries = read_pretrained();
///     fsdp::load_full_state_dict(entries, model);
std::vector<std::string> load_full_state_dict(const std::vector<std::pair<std::string, at::Tensor>>& entries,
                                              const Group& model, const LoadOptions& options = {});
/// Loads whole tensors into a module, sharded or not.
std::vector<std::string> load_full_state_dict(const std::vector<std::pair<std::string, at::Tensor>>& entries,
                                              torch::nn::Module& model, const LoadOptions& options = {});

/// Writes the tensors that full_state_dict returns to a safetensors file on rank 0. Rank 0, like the other ranks, holds
/// one whole parameter at a time. The function replaces an existing file when the new file is complete. Collective.
/// Throws UsageError in a scope, and Error on every rank if the file cannot be written.
///
///     fsdp::save_safetensors("model.safetensors", model);
void save_safetensors(const std::string& path, const Group& model);
/// Writes the whole tensors of a module, sharded or not.
void save_safetensors(const std::string& path, torch::nn::Module& model);

/// Reads a safetensors file of whole tensors that any program may have written; each rank reads its rows. Values are
/// converted to the model's dtypes. Returns the differences that LoadOptions allowed (LoadedCheckpoint::differing).
/// Collective. Throws UsageError in a scope, and Error on every rank if the file cannot be read or, before anything is
/// changed, if a tensor is missing or does not fit (see LoadOptions).
///
///     fsdp::load_safetensors("pretrained.safetensors", model, {.strict = false, .may_differ = {"head."}});
std::vector<std::string> load_safetensors(const std::string& path, const Group& model, const LoadOptions& options = {});
/// Reads a file into a module, sharded or not.
std::vector<std::string> load_safetensors(const std::string& path, torch::nn::Module& model,
                                          const LoadOptions& options = {});

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
