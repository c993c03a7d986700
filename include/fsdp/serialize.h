#pragma once
/// \file
/// torch::save and torch::load for sharded models and their optimizers, in LibTorch's format.

#include <fsdp/checkpoint.h>
#include <fsdp/group.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup checkpoints
/// \{

/// Writes the archive that torch::save writes for the unsharded module: torch::load can read it without fsdp, and so
/// can torch.jit.load in Python. The function replaces an existing file when the new file is complete. The archive has
/// rank 0's buffers. An override of `save` in a module is not called.
///
/// Rank 0 holds the whole model in memory, because LibTorch writes an archive in one piece; other ranks hold one whole
/// parameter at a time. save_safetensors and save_checkpoint need less.
///
/// Collective. Call this function outside scopes and backwards; otherwise it throws UsageError. Throws UsageError also
/// for tensors on the meta device, for TorchScript modules, and for names that LibTorch could not read back: those with
/// quotes, backslashes or newlines, and Python keywords such as "in". Throws Error on every rank if the file cannot be
/// written.
///
///     fsdp::save(model, "model.pt");
///     fsdp::load(model, "model.pt");
void save(const Group& model, const std::string& path);
/// Writes the archive of a module, sharded or not.
void save(torch::nn::Module& model, const std::string& path);

/// Reads an archive of torch::save or fsdp::save; each rank keeps its rows. Values are converted to the model's dtypes.
/// Entries that the model does not have are ignored, as in torch::load. Returns the differences that LoadOptions
/// allowed. Every rank holds the whole file in memory, as in torch::load.
///
/// Collective. Call it outside scopes and backwards. Throws UsageError as `save` does, and Error on every rank if an
/// entry is missing or has other sizes, or if the file cannot be read; the model is then unchanged.
std::vector<std::string> load(const Group& model, const std::string& path, const LoadOptions& options = {});
/// Reads an archive into a module, sharded or not.
std::vector<std::string> load(torch::nn::Module& model, const std::string& path, const LoadOptions& options = {});

/// Writes an optimizer's whole state and the options of its parameter groups. Supports the optimizers that
/// save_checkpoint supports. (torch::save of a sharded model's optimizer writes this rank's rows, which only
/// torch::load can read.)
///
/// Rank 0 holds the whole state in memory. Collective. Call it outside scopes and backwards. Throws UsageError for
/// unsupported optimizers, and Error on every rank if the file cannot be written.
void save(const torch::optim::Optimizer& optimizer, const std::string& path);
/// Reads an optimizer that torch::save wrote for the unsharded model, or fsdp::save for the sharded model. State is
/// assigned to parameters by their positions in the parameter groups, as in torch::load.
///
/// Every rank holds the whole state in memory. Collective. Call it outside scopes and backwards. Throws UsageError for
/// unsupported optimizers, and Error on every rank as `load` of a model does; the optimizer is then unchanged.
void load(torch::optim::Optimizer& optimizer, const std::string& path);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
