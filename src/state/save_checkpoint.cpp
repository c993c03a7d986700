#include <fsdp/checkpoint.h>

#include "api/group_view.h"
#include "state/checkpoint_part.h"
#include "state/format/checkpoint_folder.h"

namespace fsdp {
namespace {

using namespace state;

void save(const std::string& folder, const ModuleNode& tree, const torch::optim::Optimizer* optimizer,
          const SaveOptions& options) {
  const std::string operation = "save_checkpoint";
  const auto tensors = state::tensors_of(tree, operation);
  const Ranks ranks(tensors.ranks);
  require_savable(tensors, optimizer, options, ranks.where(operation));
  std::optional<FolderLock> lock;
  const bool is_first = ranks.rank() == 0;
  const auto partial = ranks.together(operation, [&]() -> std::string {
    if (!is_first) return {};
    lock.emplace(folder);
    return begin_step(folder, options.step, *lock);
  })[0];
  try {
    const auto parts =
        ranks.together(operation, [&] { return write(partial, part_of(tensors, optimizer, options, ranks)); });
    ranks.together(operation, [&]() -> std::string {
      if (is_first) complete_step(folder, manifest_of(parts), options.keep, *lock);
      return {};
    });
  } catch (...) {
    if (lock) abandon_step(folder, options.step, *lock);
    throw;
  }
}

}  // namespace

void save_checkpoint(const std::string& folder, const Group& model, const torch::optim::Optimizer* optimizer,
                     const SaveOptions& options) {
  save(folder, *GroupView::of(model).tree, optimizer, options);
}
void save_checkpoint(const std::string& folder, torch::nn::Module& model, const torch::optim::Optimizer* optimizer,
                     const SaveOptions& options) {
  save(folder, *module_tree(model), optimizer, options);
}

}  // namespace fsdp
