#pragma once
/// \file
/// torch::save and torch::load of sharded models and of their optimizers, in the same format.

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

/// Writes the archive that torch::save writes of the same module unsharded: torch::load in a program without fsdp opens
/// it, and torch.jit.load in Python. What had the name before is replaced when the new file is complete. Buffers are
/// rank 0's. Modules write what torch::nn::Module::save writes: a `save` of their own is not called.
///
/// Memory: rank 0 holds the whole model meanwhile, as LibTorch writes an archive in one go; another rank one whole
/// parameter at a time. save_safetensors and save_checkpoint need less.
///
/// Collective, outside scopes and backwards. Throws UsageError in one, for what is on the meta device, for TorchScript
/// modules, and for names that LibTorch would write but could not read: those with quotes, backslashes or newlines, and
/// keywords of Python, e.g. a module "in". Throws an Error on every rank if the file cannot be written.
///
///     fsdp::save(model, "model.pt");
///     fsdp::load(model, "model.pt");
void save(const Group& model, const std::string& path);
/// The same of a module, sharded or not.
void save(torch::nn::Module& model, const std::string& path);

/// Reads an archive of torch::save or fsdp::save: each rank takes its rows of what it reads. Values are converted where
/// the dtype differs. What the archive has beyond the model is ignored, as torch::load does. Returns what was not
/// strict (see LoadOptions). Memory: the whole file on every rank meanwhile, as with torch::load.
///
/// Collective, outside scopes and backwards. Throws UsageError as `save` does; an Error on every rank where something
/// is missing or has other sizes, or the file cannot be read: the model is then as it was.
std::vector<std::string> load(const Group& model, const std::string& path, const LoadOptions& options = {});
/// The same into a module, sharded or not.
std::vector<std::string> load(torch::nn::Module& model, const std::string& path, const LoadOptions& options = {});

/// The same of an optimizer, with whole state and the options of its parameter groups. Of the kinds that
/// save_checkpoint takes. What torch::save wrote of a sharded model's optimizer is one rank's rows, and torch::load's
/// to read.
///
/// Memory: the whole state on rank 0. Collective, outside scopes and backwards. Throws UsageError for other kinds; an
/// Error on every rank if the file cannot be written.
void save(const torch::optim::Optimizer& optimizer, const std::string& path);
/// Reads what torch::save wrote of the optimizer of the unsharded model, or fsdp::save of the sharded one's. As
/// torch::load does, it gives state to parameters by their places in the groups.
///
/// Memory: the whole state on every rank. Collective, outside scopes and backwards. Throws UsageError for other kinds;
/// an Error on every rank as `load` of a model does: the optimizer is then as it was.
void load(torch::optim::Optimizer& optimizer, const std::string& path);

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
