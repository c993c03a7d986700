#pragma once
/// \file
/// Checkpoints: all that is needed to resume training, in files that any number of ranks can read. docs/checkpoints.md
/// describes the format.

#include <fsdp/group.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup checkpoints
/// \{

class GradScaler;

/// Options of save_checkpoint, most of which are saved beside the model and the optimizer. Every field is optional.
struct SaveOptions {
  /// Number of steps trained so far, from 0; part of the checkpoint's name. The save replaces a checkpoint of the same
  /// step.
  int64_t step = 0;
  /// JSON text of your own, for example the epoch and the position in the data. Rank 0's text is saved.
  std::string extra = "{}";
  /// JSON texts by name, for other objects that have a state, such as schedulers (schedulers.h). Rank 0's texts are
  /// saved.
  std::map<std::string, std::string> states = {};
  /// States of generators other than LibTorch's default ones, by name: one-dimensional CPU tensors, as
  /// at::Generator::get_state() returns them. Each rank saves its own. A name must not be that of a device type, such
  /// as "cpu".
  std::map<std::string, at::Tensor> random_states = {};
  /// Number of newest checkpoints that stay in the folder, at least 1; the save removes older ones. If unset, all
  /// checkpoints stay. With or without this limit, a save renames checkpoints of larger steps to abandoned-step-N,
  /// because they belong to a training that was given up. Abandoned checkpoints are loaded only if you name them, do
  /// not count towards this number, and stay until a later abandoned checkpoint of the same step replaces them.
  std::optional<int64_t> keep = std::nullopt;
  /// GradScaler that is saved too, as "scaler" among the states; null if there is none. A disabled scaler is not saved.
  const GradScaler* scaler = nullptr;
};

/// Options of load_checkpoint.
struct LoadOptions {
  /// True if the checkpoint must have exactly the tensors of the model and of the optimizer, with the same sizes.
  /// load_checkpoint then throws an Error that lists the tensors that differ.
  bool strict = true;
  /// Prefixes, such as "head.", of the names of tensors that are allowed to be missing, extra or of other sizes if
  /// `strict` is false. If empty, all tensors may differ. Tensors of the model that differ keep their values.
  std::vector<std::string> may_differ = {};
  /// GradScaler that gets the saved scaler's state; null if there is none. A checkpoint without a scaler's state counts
  /// as different at the name "scaler".
  GradScaler* scaler = nullptr;
  /// True if a missing checkpoint is not an error: nothing is then loaded, and LoadedCheckpoint::path is empty. One
  /// program can thus start a training and resume it.
  bool if_any = false;
};

/// Result of load_checkpoint.
struct LoadedCheckpoint {
  /// Absolute path of the checkpoint; empty if there was none (LoadOptions::if_any).
  std::string path;
  /// Value of SaveOptions::step.
  int64_t step = 0;
  /// Number of ranks of the program that saved the checkpoint.
  int64_t world_size = 0;
  /// Value of SaveOptions::extra.
  std::string extra;
  /// Value of SaveOptions::states.
  std::map<std::string, std::string> states;
  /// This rank's SaveOptions::random_states, and the saved states of the default generators by the names of device
  /// types. Empty if load_checkpoint did not restore the random state.
  std::map<std::string, at::Tensor> random_states;
  /// Differences that LoadOptions allowed: a line for each name that is missing, extra or of other sizes.
  std::vector<std::string> differing;
};

/// Writes the checkpoint `folder`/step-N: parameters and buffers by the module's names, the optimizer's state and
/// options, the random state of every rank, and what `options` adds. Afterwards the file `folder`/latest contains the
/// checkpoint's name.
///
/// Each rank writes its rows and sends rank 0 the places and checksums of these rows. Ranks that hold the same rows
/// each write a share of them. Rank 0 writes tensors that are not sharded, so buffers have rank 0's values. Ranks
/// communicate values only of parameters whose columns are split over a tensor axis. The checkpoint gets its name when
/// all of it is on the disk, so a save that is interrupted at any point leaves earlier checkpoints as they were. Rows
/// on a device go through host memory one tensor at a time.
///
/// `model` is a handle, or any module, even in a program without a process group. `optimizer` is null or an optimizer
/// of the model's parameters: AdamW, Adam, SGD, Adagrad or RMSprop of torch::optim, or any of fsdp::optim except LBFGS.
/// `folder` must be the same on every rank. If ranks see different disks, each disk gets the files of its ranks
/// (docs/checkpoints.md). A relative path is resolved in the current working directory.
///
/// Collective over the ranks that the model is sharded over; over the default process group if nothing is sharded or a
/// tensor axis splits parameters. Call it outside scopes and backwards. Every rank waits for the slowest one, at most
/// as long as the process group's timeout. Throws UsageError in a scope, for tensors on the meta device
/// (fsdp::materialize and fsdp::to_empty give them memory), for optimizers of other types or of other parameters, and
/// for groups that are sharded over different ranks. If one rank cannot write, for example because the disk is full or
/// another job writes to the folder, every rank throws an Error that names the rank, the file and what to do. The
/// model, the optimizer and earlier checkpoints are then as they were.
///
///     fsdp::save_checkpoint("runs/a", model, &optimizer, {.step = step, .extra = R"({"epoch": 3})", .keep = 2});
void save_checkpoint(const std::string& folder, const Group& model, const torch::optim::Optimizer* optimizer = nullptr,
                     const SaveOptions& options = {});
/// Saves a module, sharded or not, in the same way.
void save_checkpoint(const std::string& folder, torch::nn::Module& model,
                     const torch::optim::Optimizer* optimizer = nullptr, const SaveOptions& options = {});

/// Reads a checkpoint into a model and, unless `optimizer` is null, into an optimizer of the model's parameters. The
/// number of ranks, strategy, mesh, wrapping and dtypes may differ from those of the program that saved, and a program
/// without a process group can load too. Each rank reads only its own rows and compares them with their checksums.
/// Values are converted to the model's dtypes. `folder` is one checkpoint, or the folder of a run, whose newest
/// checkpoint is then loaded.
///
/// If `optimizer` is given and the number of ranks is that of the program that saved, the default generators of each
/// rank get their saved states, and training continues bit for bit as without a break. Otherwise the generators stay as
/// they are; later steps are equal up to rounding, and ranks draw other random numbers.
///
/// Collective, as save_checkpoint is. Call it outside scopes and backwards. Throws UsageError as save_checkpoint does.
/// Throws Error on every rank, before anything is changed, if a tensor is missing or does not fit (see LoadOptions).
/// Throws Error on every rank if a file is damaged; the model may then be partly loaded, so load another checkpoint.
///
///     if (std::filesystem::exists("runs/a")) step = fsdp::load_checkpoint("runs/a", model, &optimizer).step;
LoadedCheckpoint load_checkpoint(const std::string& folder, const Group& model,
                                 torch::optim::Optimizer* optimizer = nullptr, const LoadOptions& options = {});
/// Loads into a module, sharded or not, in the same way.
LoadedCheckpoint load_checkpoint(const std::string& folder, torch::nn::Module& model,
                                 torch::optim::Optimizer* optimizer = nullptr, const LoadOptions& options = {});

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
