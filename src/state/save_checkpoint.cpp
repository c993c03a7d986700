#include <fsdp/checkpoint.h>

#include "api/group_view.h"
#include "state/checkpoint.h"
#include "state/checkpoint_part.h"
#include "state/shared_step.h"
#include "state/stages.h"

namespace fsdp {

using namespace state;

void state::save(const std::string& folder, ModelTensors tensors, const torch::optim::Optimizer* optimizer,
                 const SaveOptions& options) {
  const Ranks ranks(tensors.ranks, kSave, folder);
  require_savable(tensors, optimizer, options, ranks.where());
  join_stages(tensors, optimizer, ranks);
  SharedStep step(options, ranks);
  auto own = part_of(tensors, optimizer, options, ranks);
  std::string part;
  step.write(ranks, [&] {
    add_random_states(own, tensors, options);
    part = write(step.path(), std::move(own));
  });
  step.complete(part, ranks);
}

void save_checkpoint(const std::string& folder, const Group& model, const torch::optim::Optimizer* optimizer,
                     const SaveOptions& options) {
  save(folder, tensors_of(*GroupView::of(model).tree, kSave, Parts::kTaken), optimizer, options);
}
void save_checkpoint(const std::string& folder, torch::nn::Module& model, const torch::optim::Optimizer* optimizer,
                     const SaveOptions& options) {
  save(folder, tensors_of(*module_tree(model), kSave, Parts::kTaken), optimizer, options);
}

}  // namespace fsdp
