#include <fsdp/serialize.h>

#include <ATen/core/grad_mode.h>
#include <torch/serialize/archive.h>

#include <map>
#include <set>
#include <unordered_map>

#include "api/group_view.h"
#include "api/rows.h"
#include "comm/core/check.h"
#include "state/match_entries.h"
#include "state/ranks.h"
#include "state/torch_archive.h"

namespace fsdp {
namespace {

using namespace state;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

bool has_archive(const ModuleNode& node) { return node.module->is_serializable(); }

void require_modules(const ModuleNode& tree, const std::string& where) {
  visit_nodes(tree, [&](const ModuleNode& node) {
    require(node.module != nullptr, where, "expected a module of torch::nn, found a ",
            node.type.empty() ? "list of modules" : node.type, ". save_safetensors accepts any module");
  });
}

// Throws UsageError if LibTorch could not read back a name that it would write. Called before anything is gathered.
void require_names(const ModuleNode& tree, const std::string& where) {
  std::set<std::string> tensors, modules;
  visit_nodes(tree, [&](const ModuleNode& node) {
    if (!has_archive(node)) return;
    for (const auto* list : {&node.parameters, &node.buffers})
      for (const auto& named : *list) tensors.insert(own_name(named.name));
    for (const auto& child : node.children) modules.insert(own_name(child->path));
  });
  const auto unreadable = unreadable_names(tensors, modules);
  require(unreadable.empty(), where, "LibTorch cannot read these names from an archive: '",
          str_join("', '", unreadable),
          "'. Register these modules, parameters or buffers under different names, or call save_safetensors");
}

using WholeTensors = std::unordered_map<const at::TensorImpl*, at::Tensor>;

// Writes a module as torch::nn::Module::save does, but with the tensors of `whole`.
void write_module(const ModuleNode& node, const WholeTensors& whole, OutputArchive& archive) {
  for (const auto& [name, tensor] : node.parameters)
    if (tensor.defined()) archive.write(own_name(name), whole.at(tensor.unsafeGetTensorImpl()));
  for (const auto& [name, tensor] : node.buffers)
    if (tensor.defined()) archive.write(own_name(name), whole.at(tensor.unsafeGetTensorImpl()), /*is_buffer=*/true);
  for (const auto& child : node.children) {
    if (!has_archive(*child)) continue;
    OutputArchive child_archive(archive.compilation_unit());
    write_module(*child, whole, child_archive);
    archive.write(own_name(child->path), child_archive);
  }
}

// Reads those tensors of the module that the archive has, and adds them to `found` by name.
void read_module(const ModuleNode& node, InputArchive& archive, std::map<std::string, at::Tensor>& found) {
  const auto read = [&](const runtime::NamedParameter& named, bool is_buffer) {
    at::Tensor tensor;
    if (archive.try_read(own_name(named.name), tensor, is_buffer)) found[named.name] = tensor;
  };
  for (const auto& parameter : node.parameters) read(parameter, /*is_buffer=*/false);
  for (const auto& buffer : node.buffers) read(buffer, /*is_buffer=*/true);
  for (const auto& child : node.children) {
    InputArchive child_archive;
    if (has_archive(*child) && archive.try_read(own_name(child->path), child_archive))
      read_module(*child, child_archive, found);
  }
}

void save_module(const std::string& path, const ModuleNode& tree) {
  const std::string call = "save";
  const auto tensors = state::tensors_of(tree, call);
  const Ranks ranks(tensors.ranks, call, path);
  require_modules(tree, ranks.where());
  require_names(tree, ranks.where());
  WholeTensors whole;
  FirstError error;
  for (const auto& tensor : tensors.all) {
    const auto values = gather_whole(tensor.tensor, call, path);
    if (ranks.rank() > 0) continue;
    error.run([&] {
      whole[tensor.tensor.unsafeGetTensorImpl()] = values.cpu().set_requires_grad(tensor.tensor.requires_grad());
    });
  }
  ranks.all_do([&] {
    error.rethrow();
    if (ranks.rank() == 0) write_archive(path, [&](OutputArchive& archive) { write_module(tree, whole, archive); });
  });
}

std::vector<std::string> load_module(const std::string& path, const ModuleNode& tree, const LoadOptions& options) {
  const std::string call = "load";
  const auto tensors = state::tensors_of(tree, call);
  const Ranks ranks(tensors.ranks, call, path);
  require_modules(tree, ranks.where());
  std::map<std::string, at::Tensor> found;
  EntryMatch match;
  ranks.all_do([&] {
    read_archive(path, [&](InputArchive& archive) { read_module(tree, archive, found); });
    TensorRecords records;
    for (const auto& [name, tensor] : found) records[name].sizes = tensor.sizes().vec();
    match = match_entries(records, tensors, options);
    require_match(match, path);
  });
  ranks.all_do([&] {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < tensors.all.size(); ++i)
      if (match.names[i]) tensors.all[i].tensor.copy_(rows_of(found.at(*match.names[i]), tensors.all[i]));
  });
  return std::move(match.allowed);
}

}  // namespace

void save(const Group& model, const std::string& path) { save_module(path, *GroupView::of(model).tree); }
void save(torch::nn::Module& model, const std::string& path) { save_module(path, *module_tree(model)); }

std::vector<std::string> load(const Group& model, const std::string& path, const LoadOptions& options) {
  return load_module(path, *GroupView::of(model).tree, options);
}
std::vector<std::string> load(torch::nn::Module& model, const std::string& path, const LoadOptions& options) {
  return load_module(path, *module_tree(model), options);
}

}  // namespace fsdp
