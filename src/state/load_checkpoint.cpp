#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <fsdp/checkpoint.h>

#include "api/group_view.h"
#include "runtime/compat.h"
#include "state/fit.h"
#include "state/format/checkpoint_reader.h"
#include "state/optimizer_state.h"
#include "state/random_state.h"
#include "state/ranks.h"
#include "state/torch_dtype.h"

namespace fsdp {
namespace {

using namespace state;

// On the CPU, in the dtype of the file.
at::Tensor rows_in(CheckpointReader& reader, const std::string& name, const TensorRecord& record, layout::RowRange rows,
                   at::IntArrayRef shown_sizes) {
  auto values = at::empty(shown_sizes, scalar_type_of(record.dtype));
  reader.read_rows(name, record, rows.first, rows.count, mutable_bytes_in(values));
  return values;
}

void note_misfit(Fit& fit, const Manifest& manifest, const ModelTensors& tensors,
                 const torch::optim::Optimizer& optimizer, const LoadOptions& options) {
  if (auto misfit = misfit_of(optimizer, tensors, manifest.optimizer); !misfit.empty())
    note(fit, options, "optim.", misfit);
  for (const auto& tensor : tensors.all)
    for (const auto& field : state_fields(optimizer)) {
      const auto saved = manifest.training.find(name_of_state(tensor.name(), field));
      if (saved != manifest.training.end() && saved->second.sizes != tensor.sizes)
        note(fit, options, saved->first, "has other sizes than the parameter");
    }
}

void read_model(CheckpointReader& reader, const ModelTensors& tensors, const Fit& fit) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors.all.size(); ++i) {
    const auto& [names, tensor, sizes, rows, share] = tensors.all[i];
    if (!fit.names[i]) continue;
    const auto& record = reader.manifest().model.at(*fit.names[i]);
    // An operator on rows like any other: the group hears of the write and waits for readers.
    tensor.copy_(rows_in(reader, *fit.names[i], record, rows, tensor.sizes()));
  }
}

void read_optimizer(CheckpointReader& reader, const ModelTensors& tensors, torch::optim::Optimizer& optimizer) {
  const auto& training = reader.manifest().training;
  restore(optimizer, tensors, reader.manifest().optimizer, [&](size_t place, const std::string& field) -> at::Tensor {
    const auto& parameter = tensors.all[place];
    const auto found = training.find(name_of_state(parameter.name(), field));
    if (found == training.end()) return {};
    const auto values = rows_in(reader, found->first, found->second, parameter.rows, parameter.tensor.sizes());
    const runtime::OwnOperators own_operators;
    const auto dtype = values.is_floating_point() ? parameter.tensor.scalar_type() : values.scalar_type();
    const auto options = at::device(parameter.tensor.device()).dtype(dtype);
    const bool is_as_wanted =
        parameter.tensor.is_cpu() && values.scalar_type() == dtype && values.strides() == parameter.tensor.strides();
    if (is_as_wanted) return values;
    return at::empty_strided(parameter.tensor.sizes(), parameter.tensor.strides(), options).copy_(values);
  });
}

void read_random_state(CheckpointReader& reader, const ModelTensors& tensors, const Ranks& ranks) {
  if (reader.manifest().world_size != ranks.world_size()) return;
  for (const auto& device : devices_of(tensors)) {
    const auto found = reader.manifest().training.find(name_of_random(ranks.rank(), device));
    if (found == reader.manifest().training.end()) continue;
    set_random_state(device,
                     rows_in(reader, found->first, found->second, {0, found->second.rows()}, found->second.sizes));
  }
}

LoadedCheckpoint load(const std::string& folder, const ModuleNode& tree, torch::optim::Optimizer* optimizer,
                      const LoadOptions& options) {
  const std::string operation = "load_checkpoint";
  const auto tensors = state::tensors_of(tree, operation);
  const Ranks ranks(tensors.ranks);
  if (optimizer) require_known(*optimizer, tensors, ranks.where(operation));
  // Rank 0 says which: a folder may get a newer one meanwhile.
  const auto path = ranks.together(operation, [&] { return ranks.rank() == 0 ? find_checkpoint(folder) : ""; })[0];
  std::optional<CheckpointReader> reader;
  Fit fit;
  bool takes_optimizer = optimizer != nullptr;
  ranks.together(operation, [&]() -> std::string {
    reader.emplace(path);
    fit = fit_of(reader->manifest().model, tensors, options);
    if (optimizer) {
      const auto lines = fit.allowed.size();
      note_misfit(fit, reader->manifest(), tensors, *optimizer, options);
      takes_optimizer = fit.allowed.size() == lines;
    }
    require_fit(fit, reader->path());
    return {};
  });
  ranks.together(operation, [&]() -> std::string {
    read_model(*reader, tensors, fit);
    if (takes_optimizer) read_optimizer(*reader, tensors, *optimizer);
    if (optimizer) read_random_state(*reader, tensors, ranks);
    return {};
  });
  const auto& manifest = reader->manifest();
  return {path, manifest.step, manifest.world_size, manifest.extra, std::move(fit.allowed)};
}

}  // namespace

LoadedCheckpoint load_checkpoint(const std::string& folder, const Group& model, torch::optim::Optimizer* optimizer,
                                 const LoadOptions& options) {
  return load(folder, *GroupView::of(model).tree, optimizer, options);
}
LoadedCheckpoint load_checkpoint(const std::string& folder, torch::nn::Module& model,
                                 torch::optim::Optimizer* optimizer, const LoadOptions& options) {
  return load(folder, *module_tree(model), optimizer, options);
}

}  // namespace fsdp
