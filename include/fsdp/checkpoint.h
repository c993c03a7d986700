#pragma once
/// \file
/// Checkpoints: what training needs to go on, in files that any number of ranks can read. docs/checkpoints.md has the
/// format.

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

/// What is saved beside the model and the optimizer. Every field is optional.
struct SaveOptions {
  /// Names the checkpoint: one of the same step is replaced.
  int64_t step = 0;
  /// JSON of one's own, e.g. the epoch and how far the data was read. Rank 0's counts.
  std::string extra = "{}";
  /// By name, JSON of what else has a state: schedulers (schedulers.h). Rank 0's count.
  std::map<std::string, std::string> states = {};
  /// By name, states of generators beside LibTorch's default ones: tensors of one dimension on the CPU, as
  /// at::Generator::get_state() returns them. Each rank saves its own. No name is that of a device type, e.g. "cpu".
  std::map<std::string, at::Tensor> random_states = {};
  /// How many checkpoints stay in the folder, the newest; none: all of them. Checkpoints of larger steps than this one
  /// belong to a training that was given up: they get the names abandoned-step-N, which nothing loads, counts or
  /// removes by itself, but that one of the same step replaces it.
  std::optional<int64_t> keep = std::nullopt;
  /// Its state is saved too, among `states` under the name "scaler", unless it is not enabled.
  const GradScaler* scaler = nullptr;
};

/// How a checkpoint has to fit.
struct LoadOptions {
  /// Every tensor of the model and of the optimizer is in the checkpoint, the checkpoint has no others, and sizes are
  /// equal; anything else is an error that lists them.
  bool strict = true;
  /// Without `strict`: beginnings of the names that may be missing, extra or of other sizes, e.g. "head."; those of the
  /// model keep their values. Empty: all of them may.
  std::vector<std::string> may_differ = {};
  /// Gets the state of the one that was saved; a checkpoint without one differs at the name "scaler".
  GradScaler* scaler = nullptr;
  /// Where there is no checkpoint, none is loaded and LoadedCheckpoint::path is empty: for a program that begins, or
  /// goes on where it was.
  bool if_any = false;
};

/// What was loaded.
struct LoadedCheckpoint {
  /// Of the checkpoint, from the root; empty if there was none (LoadOptions::if_any).
  std::string path;
  /// SaveOptions::step.
  int64_t step = 0;
  /// Ranks of the program that saved it.
  int64_t world_size = 0;
  /// SaveOptions::extra.
  std::string extra;
  /// SaveOptions::states.
  std::map<std::string, std::string> states;
  /// This rank's SaveOptions::random_states, and by device type the states that the default generators were given.
  /// Empty where the random state is not restored (load_checkpoint).
  std::map<std::string, at::Tensor> random_states;
  /// What was not strict: a line for each name that is missing, extra or of other sizes.
  std::vector<std::string> differing;
};

/// Writes `folder`/step-N: parameters and buffers by the module's names, the optimizer's state and options, the random
/// state of every rank, `options`. Then the file `folder`/latest names it.
///
/// Each rank writes its rows; no parameter is communicated (but columns, where the ranks of a tensor axis have parts:
/// then every rank of the program saves), rank 0 is told which rows lie where, with their checksums. Ranks that hold
/// the same rows write a share each; what is not sharded, rank 0 writes (so of buffers, rank 0's values). The
/// checkpoint has its name when all of it is on the disk, so one that is interrupted at any point leaves the earlier
/// ones as they were. Rows on a device go through host memory one tensor at a time.
///
/// `model`: a handle, or any module, also without fsdp and without a process group. `optimizer`: null, or one of
/// parameters of the model: AdamW, Adam, SGD, Adagrad, RMSprop of torch::optim, those of fsdp::optim but LBFGS. The
/// folder is the same for all ranks, on a disk that all of them see; a relative path begins at the folder in which the
/// program works when it calls. Collective, outside scopes and backwards; every rank waits for the slowest one, at most
/// for the process group's timeout.
///
/// Throws UsageError in a scope, for what is on the meta device (fsdp::materialize and fsdp::to_empty give it memory),
/// for an optimizer of another kind or of other parameters, and for groups over different ranks. Otherwise ranks fail
/// alike, with an Error that names the rank, the file and what to do: no room, no right to write, another job that
/// writes to the folder. The model, the optimizer and earlier checkpoints are then as they were.
///
///     fsdp::save_checkpoint("runs/a", model, &optimizer, {.step = step, .extra = R"({"epoch": 3})", .keep = 2});
void save_checkpoint(const std::string& folder, const Group& model, const torch::optim::Optimizer* optimizer = nullptr,
                     const SaveOptions& options = {});
/// The same of a module, sharded or not.
void save_checkpoint(const std::string& folder, torch::nn::Module& model,
                     const torch::optim::Optimizer* optimizer = nullptr, const SaveOptions& options = {});

/// Reads a checkpoint into a model and, unless it is null, into an optimizer of its parameters: with any number of
/// ranks, strategy, mesh and wrapping, also by a plain program. Each rank reads its own rows only, and compares all
/// that it reads with the checksums. Values are converted where the dtype differs. `folder`: of a run, whose newest
/// checkpoint is taken, or of one checkpoint.
///
/// The random state of each rank is restored if `optimizer` is given and the number of ranks is the one that saved:
/// training then goes on bit for bit as without a break. Without an optimizer, or with another number of ranks, the
/// generators stay as they are, and training goes on up to rounding and to what it draws.
///
/// Collective, outside scopes and backwards. Throws UsageError as save_checkpoint does; an Error on every rank where
/// something is missing or does not fit (see LoadOptions), before anything is changed, or where a file is damaged: then
/// the model may be loaded in part, and another checkpoint has to be loaded.
///
///     if (std::filesystem::exists("runs/a")) step = fsdp::load_checkpoint("runs/a", model, &optimizer).step;
LoadedCheckpoint load_checkpoint(const std::string& folder, const Group& model,
                                 torch::optim::Optimizer* optimizer = nullptr, const LoadOptions& options = {});
/// The same into a module, sharded or not.
LoadedCheckpoint load_checkpoint(const std::string& folder, torch::nn::Module& model,
                                 torch::optim::Optimizer* optimizer = nullptr, const LoadOptions& options = {});

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
