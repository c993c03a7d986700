#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <fsdp/checkpoint.h>
#include <fsdp/error.h>

#include <algorithm>

#include "api/group_view.h"
#include "comm/posix/file.h"
#include "runtime/compat.h"
#include "state/checkpoint.h"
#include "state/checkpoint_rows.h"
#include "state/match_entries.h"
#include "state/optimizer_state.h"
#include "state/random_state.h"
#include "state/ranks.h"
#include "state/scaler_state.h"
#include "state/stages.h"
#include "state/torch_dtype.h"

namespace fsdp {
namespace {

using namespace state;

// Reads elements into a new CPU tensor of the file's dtype.
at::Tensor values_in(CheckpointRows& reader, const std::string& name, const TensorRecord& record, ElementRange elements,
                     at::IntArrayRef shown_sizes) {
  auto values = at::empty(shown_sizes, scalar_type_of(record.dtype));
  reader.read(name, record, elements, mutable_bytes_in(values));
  return values;
}

ElementRange elements_of(const OwnRows::Run& run, const OwnRows& own) {
  return {run.first_of_whole * own.row_numel(), run.count * own.row_numel()};
}

// Reads this rank's rows. If the ranks of a tensor axis split the tensor, reads the rows of this rank's part in runs;
// if this part consists of columns, reads whole rows and returns the columns. All ranks call `read` equally often,
// since it can be collective.
at::Tensor values_in(CheckpointRows& reader, const std::string& name, const TensorRecord& record, const OwnRows& own,
                     at::IntArrayRef shown_sizes) {
  if (!own.cut) return values_in(reader, name, record, own.elements(), shown_sizes);
  auto sizes = shown_sizes.vec();
  if (own.cut->dim == 1) sizes[1] = own.sizes[1];
  auto values = at::empty(sizes, scalar_type_of(record.dtype));
  for (const auto& run : own.runs_of(own.rows)) {
    const auto rows = values.narrow(0, run.count == 0 ? 0 : run.first - own.rows.first, run.count);
    reader.read(name, record, elements_of(run, own), mutable_bytes_in(rows));
  }
  if (own.cut->dim == 0) return values;
  return values.narrow(1, own.cut->axis->rank() * shown_sizes[1], shown_sizes[1]).contiguous();
}

void note_optimizer_differences(EntryMatch& match, const Manifest& manifest, const ModelTensors& tensors,
                                const torch::optim::Optimizer& optimizer, const LoadOptions& options) {
  if (auto misfit = misfit_of(optimizer, tensors, manifest.optimizer); !misfit.empty())
    note_difference(match, options, "optim.", misfit);
  for (const auto& tensor : tensors.all)
    for (const auto& field : state_fields(optimizer)) {
      const auto saved = manifest.training.find(name_of_state(tensor.name(), field));
      if (saved != manifest.training.end() && saved->second.sizes != tensor.sizes)
        note_difference(match, options, saved->first, "has different sizes than the parameter");
    }
}

void read_model(CheckpointRows& reader, const ModelTensors& tensors, const EntryMatch& match) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors.all.size(); ++i) {
    if (!match.names[i]) continue;
    const auto& tensor = tensors.all[i];
    const auto& record = reader.manifest().model.at(*match.names[i]);
    // copy_ lets the group count the write of the rows, and waits for other ranks that still read them.
    tensor.tensor.copy_(values_in(reader, *match.names[i], record, tensor, tensor.tensor.sizes()));
  }
}

void read_optimizer(CheckpointRows& reader, const ModelTensors& tensors, torch::optim::Optimizer& optimizer) {
  const auto& training = reader.manifest().training;
  restore(optimizer, tensors, reader.manifest().optimizer, [&](size_t place, const std::string& field) -> at::Tensor {
    const auto& parameter = tensors.all[place];
    const auto found = training.find(name_of_state(parameter.name(), field));
    if (found == training.end()) return {};
    const auto values = values_in(reader, found->first, found->second, parameter, parameter.tensor.sizes());
    const runtime::OwnOperators own_operators;
    const auto dtype = values.is_floating_point() ? dtype_of_state(optimizer, parameter.tensor) : values.scalar_type();
    const auto options = at::device(parameter.tensor.device()).dtype(dtype);
    const bool is_as_wanted =
        parameter.tensor.is_cpu() && values.scalar_type() == dtype && values.strides() == parameter.tensor.strides();
    if (is_as_wanted) return values;
    return at::empty_strided(parameter.tensor.sizes(), parameter.tensor.strides(), options).copy_(values);
  });
}

// Returns this rank's random states by name, or none if the checkpoint was saved with a different number of ranks.
std::map<std::string, at::Tensor> read_random_states(CheckpointRows& reader, const Ranks& ranks) {
  std::map<std::string, at::Tensor> states;
  if (reader.manifest().world_size != ranks.world_size()) return states;
  const auto own = name_of_random(ranks.rank(), "");
  for (const auto& [name, record] : reader.manifest().training) {
    if (name.starts_with(own))
      states[name.substr(own.size())] = values_in(reader, name, record, {0, record.numel()}, record.sizes);
    else if (is_random(name) && reader.is_sent(record))
      values_in(reader, name, record, {0, 0}, {0});
  }
  return states;
}

// Returns the elements that this rank will read.
std::vector<CheckpointRows::Wanted> wanted_of(const Manifest& manifest, const ModelTensors& tensors,
                                              const EntryMatch& match, const torch::optim::Optimizer* optimizer,
                                              const Ranks& ranks) {
  std::vector<CheckpointRows::Wanted> wanted;
  const auto want = [&](const TensorRecord& record, const OwnRows& own) {
    for (const auto& run : own.runs_of(own.rows)) wanted.push_back({&record, elements_of(run, own)});
  };
  for (size_t i = 0; i < tensors.all.size(); ++i)
    if (match.names[i]) want(manifest.model.at(*match.names[i]), tensors.all[i]);
  if (!optimizer) return wanted;
  for (const auto& tensor : tensors.all)
    for (const auto& field : state_fields(*optimizer))
      if (const auto found = manifest.training.find(name_of_state(tensor.name(), field));
          found != manifest.training.end())
        want(found->second, tensor);
  for (const auto& [name, record] : manifest.training)
    if (name.starts_with(name_of_random(ranks.rank(), ""))) wanted.push_back({&record, {0, record.numel()}});
  return wanted;
}

}  // namespace

LoadedCheckpoint state::load(const std::string& named, ModelTensors tensors, torch::optim::Optimizer* optimizer,
                             const LoadOptions& options) {
  const Ranks ranks(tensors.ranks, kLoad, named);
  if (optimizer) require_known(*optimizer, tensors, ranks.where());
  join_stages(tensors, optimizer, ranks);
  const auto folder = absolute_path(named);
  const auto checkpoint = CheckpointRows::find(folder, ranks);
  if (!checkpoint && options.if_any) return {};
  if (!checkpoint) {
    ranks.together([&] { return find_checkpoint(folder); });  // throws, and says why there is no checkpoint
    throw Error(ranks.where() + folder + kChanged);
  }
  const auto& manifest = checkpoint->manifest();
  EntryMatch match;
  bool takes_optimizer = optimizer != nullptr, takes_scaler = options.scaler && options.scaler->is_enabled();
  ranks.all_do([&] {
    match = match_entries(manifest.model, tensors, options);
    if (optimizer) {
      const auto lines = match.allowed.size();
      note_optimizer_differences(match, manifest, tensors, *optimizer, options);
      takes_optimizer = match.allowed.size() == lines;
    }
    if (takes_scaler && !manifest.states.contains(kScaler)) {
      note_difference(match, options, kScaler, "the checkpoint has no GradScaler");
      takes_scaler = false;
    }
    require_match(match, checkpoint->path());
  });
  checkpoint->announce(wanted_of(manifest, tensors, match, optimizer, ranks));
  std::map<std::string, at::Tensor> random_states;
  ranks.all_do([&] {
    read_model(*checkpoint, tensors, match);
    if (takes_optimizer) read_optimizer(*checkpoint, tensors, *optimizer);
    if (optimizer) random_states = read_random_states(*checkpoint, ranks);
    checkpoint->finish();  // throws a postponed error before the states below are restored
    if (takes_scaler) restore(*options.scaler, manifest.states.at(kScaler));
    for (const auto& device : devices_of(tensors))
      if (const auto found = random_states.find(name_of(device)); found != random_states.end())
        set_random_state(device, found->second);
  });
  return {.path = checkpoint->path(),
          .step = manifest.step,
          .world_size = manifest.world_size,
          .extra = manifest.extra,
          .states = manifest.states,
          .random_states = std::move(random_states),
          .differing = std::move(match.allowed)};
}

LoadedCheckpoint load_checkpoint(const std::string& folder, const Group& model, torch::optim::Optimizer* optimizer,
                                 const LoadOptions& options) {
  return load(folder, tensors_of(*GroupView::of(model).tree, kLoad, Parts::kTaken), optimizer, options);
}
LoadedCheckpoint load_checkpoint(const std::string& folder, torch::nn::Module& model,
                                 torch::optim::Optimizer* optimizer, const LoadOptions& options) {
  return load(folder, tensors_of(*module_tree(model), kLoad, Parts::kTaken), optimizer, options);
}

}  // namespace fsdp
