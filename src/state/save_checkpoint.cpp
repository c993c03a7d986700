#include <fsdp/checkpoint.h>

#include "api/group_view.h"
#include "state/checkpoint_part.h"
#include "state/shared_step.h"

namespace fsdp {
namespace {

using namespace state;

void save(const std::string& folder, const ModuleNode& tree, const torch::optim::Optimizer* optimizer,
          const SaveOptions& options) {
  const auto tensors = state::tensors_of(tree, "save_checkpoint", Parts::kTaken);
  const Ranks ranks(tensors.ranks, "save_checkpoint", folder);
  require_savable(tensors, optimizer, options, ranks.where());
  SharedStep step(options, ranks);
  auto own = part_of(tensors, optimizer, options, ranks);
  std::string part;
  step.write(ranks, [&] {
    add_random_states(own, tensors, options);
    part = write(step.path(), std::move(own));
  });
  step.complete(part, ranks);
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
