#include "program_fuzz/net.h"

#include <fsdp/activation_checkpoint.h>
#include <torch/torch.h>

#include <algorithm>
#include <set>

#include "program_fuzz/tables.h"

namespace fsdp::test::fuzz {

using torch::Tensor;

NodeModule::NodeModule(const Program& program, const Model& model, int node,
                       const std::vector<std::shared_ptr<NodeModule>>& before, bool recomputes)
    : torch::nn::Module(c10::str("Node", node)),
      spec_(item(model.nodes, node)),
      dtype_(model.is_mixed ? torch::kFloat : spec_.dtype),
      recompute_(recomputes ? spec_.recompute : Recompute::kNothing),
      number_(node) {
  if (spec_.cell == Cell::kRunning) mean_ = register_buffer("mean", first_values({program.width}, spec_.dtype, node));
  if (spec_.tied_to >= 0) {
    own_ = item(before, spec_.tied_to)->own_;
    for (size_t i = 0; i < own_.size(); ++i) register_parameter(c10::str("p", i), own_[i], own_[i].requires_grad());
    return;
  }
  for (const auto& sizes : sizes_of(program, spec_)) {
    const int i = static_cast<int>(own_.size());
    const bool trains = has_trained(spec_, i);
    own_.push_back(register_parameter(c10::str("p", i), first_values(sizes, spec_.dtype, 10 * number_ + i), trains));
    if (spec_.is_hooked && trains)
      own_.back().register_hook([](const Tensor& gradient) { return gradient / (1.0 + gradient.numel()); });
  }
}

void NodeModule::add_child(int node, const std::shared_ptr<NodeModule>& child) {
  children_.push_back(register_module(c10::str("n", node), child));
}

Tensor NodeModule::forward(const Tensor& h, const Call& call) {
  CheckpointOptions options;
  if (recompute_ == Recompute::kAllButProducts) options.keeps_results = is_product;
  // The graph holds the module, because it may outlive the model and still recompute.
  const auto again = [self = std::static_pointer_cast<NodeModule>(shared_from_this()), call](const Tensor& input) {
    return self->run(input, call);
  };
  const auto out = recompute_ == Recompute::kNothing ? run(h, call) : activation_checkpoint(options, again, h);
  if (call.throws_at == number_) out.register_hook([](const Tensor&) { throw Planned("in backward"); });
  return out;
}

Tensor NodeModule::run(const Tensor& h, const Call& call) {
  if (spec_.cell != Cell::kSequence)
    return info_of(spec_.cell).compute(h.to(dtype_), {own_, dtype_}, mean_, call).to(torch::kDouble);
  auto sum = h;
  for (const auto& child : children_) sum = sum + child->forward(sum, call);
  return sum;
}

Net::Net(const Program& program, const Model& model, bool recomputes) {
  std::set<const void*> seen;
  for (int i = 0; i < static_cast<int>(model.nodes.size()); ++i) {
    const auto& node = item(model.nodes, i);
    modules.push_back(node.same_as >= 0 ? item(modules, node.same_as)
                                        : std::make_shared<NodeModule>(program, model, i, modules, recomputes));
    if (node.parent >= 0) item(modules, node.parent)->add_child(i, modules.back());
    for (const auto& tensor : modules.back()->parameters(/*recurse=*/false))
      if (seen.insert(tensor.unsafeGetTensorImpl()).second) parameters.push_back({tensor, node.is_ignored});
    if (node.same_as >= 0) continue;
    for (const auto& buffer : modules.back()->buffers(/*recurse=*/false)) buffers.push_back(buffer);
  }
  // Children are sharded before parents: a parent's number is lower than its children's. The exception is a module that
  // stands at two places, because it may lie below a group with a higher number. Groups with children therefore come
  // last.
  for (bool has_children : {false, true})
    for (int i = static_cast<int>(model.nodes.size()) - 1; i >= 0; --i) {
      const auto& node = item(model.nodes, i);
      if ((i == 0 || node.is_group) && (node.cell == Cell::kSequence) == has_children) group_nodes.push_back(i);
    }
  for (int group : std::vector<int>(group_nodes.rbegin(), group_nodes.rend()))
    for (const auto& tensor : item(modules, group)->parameters())
      for (auto& parameter : parameters)
        if (tensor.is_same(parameter.tensor)) parameter.owner = group;
}

void Net::begin_apart(int rank) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : parameters)
    if (!parameter.is_ignored) parameter.tensor.mul_(1 + rank);
  for (auto& buffer : buffers) buffer.add_(rank);
}

std::vector<Tensor> Net::tensors() const {
  std::vector<Tensor> all;
  for (const auto& parameter : parameters) all.push_back(parameter.tensor);
  return all;
}

std::vector<Tensor> Net::owned_by(int group) const {
  std::vector<Tensor> some;
  for (const auto& parameter : parameters)
    if (parameter.owner == group && !parameter.is_ignored) some.push_back(parameter.tensor);
  return some;
}

std::vector<Tensor> Net::ignored_below(int node) const {
  std::vector<Tensor> some;
  const auto below = item(modules, node)->parameters();
  for (const auto& parameter : parameters)
    if (parameter.is_ignored &&
        std::ranges::any_of(below, [&](const Tensor& tensor) { return tensor.is_same(parameter.tensor); }))
      some.push_back(parameter.tensor);
  return some;
}

}  // namespace fsdp::test::fuzz
