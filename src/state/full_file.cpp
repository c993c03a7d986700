#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fsdp/state_dict.h>

#include <optional>

#include "api/group_view.h"
#include "api/rows.h"
#include "comm/core/check.h"
#include "comm/posix/file.h"
#include "state/format/safetensors.h"
#include "state/match_entries.h"
#include "state/ranks.h"
#include "state/torch_dtype.h"

namespace fsdp {
namespace {

// All ranks gather the same tensors in the same order, and rank 0 writes them. If writing fails, rank 0 continues to
// gather like the other ranks, and all ranks throw the error at the end.
void save_whole(const std::string& path, const ModuleNode& tree) {
  const std::string call = "save_safetensors";
  const auto tensors = state::tensors_of(tree, call);
  const state::Ranks ranks(tensors.ranks, call, path);
  std::vector<state::Entry> entries;
  std::map<std::string, at::Tensor> by_name;
  for (const auto& tensor : tensors.all) {
    entries.push_back({tensor.name(), state::dtype_of(tensor.tensor.scalar_type(), tensor.name()), tensor.sizes});
    by_name.emplace(tensor.name(), tensor.tensor);
  }
  state::lay_out(entries, path);
  std::optional<state::SafetensorsWriter> writer;
  FirstError error;
  const auto on_first_rank = [&](const auto& act) {
    if (ranks.rank() == 0) error.run(act);
  };
  on_first_rank([&] {
    remove_leftovers(path);
    writer.emplace(path, entries, std::map<std::string, std::string>{{"format", "pt"}});
  });
  for (const auto& entry : entries) {
    const auto whole = gather_whole(by_name.at(entry.name), call, path);
    on_first_rank([&] { writer->write(state::bytes_in(whole.cpu().contiguous())); });
  }
  on_first_rank([&] { writer->finish(); });
  ranks.all_do([&] { error.rethrow(); });
}

std::vector<std::string> load_whole(const std::string& path, const ModuleNode& tree, const LoadOptions& options) {
  const std::string call = "load_safetensors";
  const auto tensors = state::tensors_of(tree, call);
  const state::Ranks ranks(tensors.ranks, call, path);
  std::optional<state::SafetensorsFile> file;
  state::EntryMatch match;
  ranks.all_do([&] {
    file.emplace(path);
    state::TensorRecords records;
    for (const auto& entry : file->header().entries) records[entry.name] = {entry.dtype, entry.sizes, {}};
    match = match_entries(records, tensors, options);
    require_match(match, path);
  });
  ranks.all_do([&] {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < tensors.all.size(); ++i) {
      if (!match.names[i]) continue;
      const auto& tensor = tensors.all[i];
      const auto& entry = file->entry(*match.names[i]);
      const auto rows = at::empty(tensor.tensor.sizes(), state::scalar_type_of(entry.dtype));
      const auto first_byte = static_cast<uint64_t>(tensor.elements().first) * state::bytes_of(entry.dtype);
      file->read(entry, first_byte, state::mutable_bytes_in(rows));
      tensor.tensor.copy_(rows);
    }
  });
  return std::move(match.allowed);
}

}  // namespace

void save_safetensors(const std::string& path, const Group& model) { save_whole(path, *GroupView::of(model).tree); }
void save_safetensors(const std::string& path, torch::nn::Module& model) { save_whole(path, *module_tree(model)); }

std::vector<std::string> load_safetensors(const std::string& path, const Group& model, const LoadOptions& options) {
  return load_whole(path, *GroupView::of(model).tree, options);
}
std::vector<std::string> load_safetensors(const std::string& path, torch::nn::Module& model,
                                          const LoadOptions& options) {
  return load_whole(path, *module_tree(model), options);
}

}  // namespace fsdp
