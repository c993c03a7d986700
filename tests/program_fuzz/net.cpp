#include "program_fuzz/net.h"

#include <fsdp/activation_checkpoint.h>
#include <torch/torch.h>

#include <algorithm>
#include <set>

namespace fsdp::test::fuzz {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// tanh of a layer.
struct CustomLayer : torch::autograd::Function<CustomLayer> {
  static Tensor forward(AutogradContext* context, const Tensor& h, const Tensor& weight) {
    auto out = torch::tanh(torch::matmul(h, weight.t()));
    context->save_for_backward({h, weight, out});
    return out;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto inner = gradients[0] * (1 - saved[2] * saved[2]);
    return {torch::matmul(inner, saved[1]), torch::matmul(inner.t(), saved[0])};
  }
};

// The identity, whose backward may take its time.
struct Pause : torch::autograd::Function<Pause> {
  static Tensor forward(AutogradContext* context, const Tensor& h, int64_t pause) {
    context->saved_data["pause"] = pause;
    return h.clone();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto* pause = reinterpret_cast<const std::function<void()>*>(context->saved_data["pause"].toInt());
    if (pause != nullptr && *pause) (*pause)();
    return {gradients[0].clone(), Tensor()};
  }
};

// Values that depend on the node and the parameter's place in it.
Tensor first_values(const std::vector<int64_t>& sizes, torch::ScalarType dtype, int place) {
  const auto numel = c10::multiply_integers(sizes);
  return (torch::sin(torch::arange(numel, torch::kDouble) * 1.3 + 0.7 * place) * 0.4).to(dtype).view(sizes);
}

}  // namespace

NodeModule::NodeModule(const Program& program, const Model& model, int node,
                       const std::vector<std::shared_ptr<NodeModule>>& before, bool recomputes)
    : torch::nn::Module(c10::str("Node", node)),
      spec_(model.nodes[static_cast<size_t>(node)]),
      dtype_(model.is_mixed ? torch::kFloat : spec_.dtype),
      recompute_(recomputes ? spec_.recompute : Recompute::kNothing),
      number_(node) {
  const int64_t d = program.width;
  if (spec_.cell == Cell::kRunning) mean_ = register_buffer("mean", first_values({d}, spec_.dtype, node));
  if (spec_.tied_to >= 0) {
    own_ = before[static_cast<size_t>(spec_.tied_to)]->own_;
    for (size_t i = 0; i < own_.size(); ++i) register_parameter(c10::str("p", i), own_[i], own_[i].requires_grad());
    return;
  }
  switch (spec_.cell) {
    case Cell::kSequence:
    case Cell::kPause:
      break;
    case Cell::kRunning:
      add_parameter({d});
      break;
    case Cell::kLinear:
      add_parameter({d, d});
      add_parameter({d});
      break;
    case Cell::kWide:
      add_parameter({spec_.size, d});
      add_parameter({d, spec_.size});
      break;
    case Cell::kScale:
      add_parameter({});
      break;
    case Cell::kNorm:
    case Cell::kSometimes:
      add_parameter({d});
      add_parameter({d});
      break;
    case Cell::kTable:
    case Cell::kUnused:
    case Cell::kLarge:
      add_parameter({spec_.size, d});
      break;
    case Cell::kFunction:
      add_parameter({d, d});
      break;
    case Cell::kAdapter:
      add_parameter({d, d}, /*trains=*/false);
      add_parameter({spec_.size, d});
      add_parameter({d, spec_.size});
      break;
  }
}

void NodeModule::add_parameter(const std::vector<int64_t>& sizes, bool trains) {
  const int place = 10 * number_ + static_cast<int>(own_.size());
  trains = trains && !spec_.is_frozen;
  own_.push_back(register_parameter(c10::str("p", own_.size()), first_values(sizes, spec_.dtype, place), trains));
  if (spec_.is_hooked && trains)
    own_.back().register_hook(
        [](const Tensor& gradient) { return gradient / static_cast<double>(1 + gradient.numel()); });
}

void NodeModule::add_child(int node, const std::shared_ptr<NodeModule>& child) {
  children_.push_back(register_module(c10::str("n", node), child));
}

Tensor NodeModule::forward(const Tensor& h, const Call& call) {
  CheckpointOptions options;
  if (recompute_ == Recompute::kAllButProducts) options.keeps_results = is_product;
  // The graph of a model that is gone computes again, too.
  const auto again = [self = std::static_pointer_cast<NodeModule>(shared_from_this()), call](const Tensor& input) {
    return self->run(input, call);
  };
  const auto out = recompute_ == Recompute::kNothing ? run(h, call) : activation_checkpoint(options, again, h);
  if (call.throws_at == number_) out.register_hook([](const Tensor&) { throw Planned("in backward"); });
  return out;
}

Tensor NodeModule::run(const Tensor& h, const Call& call) {
  return spec_.cell == Cell::kSequence ? add_children(h, call) : compute(h.to(dtype_), call).to(torch::kDouble);
}

Tensor NodeModule::add_children(const Tensor& h, const Call& call) {
  auto sum = h;
  for (const auto& child : children_) sum = sum + child->forward(sum, call);
  return sum;
}

Tensor NodeModule::compute(const Tensor& h, const Call& call) {
  switch (spec_.cell) {
    case Cell::kLinear:
      return torch::tanh(torch::linear(h, own(0), own(1)));
    case Cell::kWide:
      return torch::linear(torch::tanh(torch::linear(h, own(0))), own(1));
    case Cell::kScale:
      return h * own(0);
    case Cell::kNorm:
      return torch::layer_norm(h, {h.size(1)}, own(0), own(1));
    case Cell::kTable: {
      const auto ids = torch::arange(h.size(0), torch::kLong) * 7 + call.seed + 3 * call.rank;
      return torch::embedding(own(0), ids.remainder(own(0).size(0)));
    }
    case Cell::kAdapter:
      return torch::tanh(torch::linear(h, own(0)) + torch::linear(torch::linear(h, own(1)), own(2)));
    case Cell::kFunction:
      return CustomLayer::apply(h, own(0));
    case Cell::kSometimes:
      return (call.seed + call.rank) % 2 == 0 ? h * own(0) + own(1) : h * own(0);
    case Cell::kRunning: {
      const auto centered = (h - mean_.clone()).to(dtype_);
      if (torch::GradMode::is_enabled() && call.updates_buffers) {
        const torch::NoGradGuard no_grad;
        mean_.mul_(0.75).add_(h.mean(0), 0.25);
      }
      return centered * own(0);
    }
    case Cell::kPause:
      return 0.1 * Pause::apply(h, reinterpret_cast<int64_t>(call.pause));
    case Cell::kLarge:
      return h * own(0).square().mean(0);
    case Cell::kUnused:
    case Cell::kSequence:
      break;
  }
  return 0.1 * h;
}

Net::Net(const Program& program, const Model& model, bool recomputes) {
  std::set<const void*> seen;
  for (int i = 0; i < static_cast<int>(model.nodes.size()); ++i) {
    const auto& node = model.nodes[static_cast<size_t>(i)];
    modules.push_back(node.same_as >= 0 ? modules[static_cast<size_t>(node.same_as)]
                                        : std::make_shared<NodeModule>(program, model, i, modules, recomputes));
    if (node.parent >= 0) modules[static_cast<size_t>(node.parent)]->add_child(i, modules.back());
    for (const auto& tensor : modules.back()->parameters(/*recurse=*/false))
      if (seen.insert(tensor.unsafeGetTensorImpl()).second) parameters.push_back({tensor, node.is_ignored});
    if (node.same_as >= 0) continue;
    for (const auto& buffer : modules.back()->buffers(/*recurse=*/false)) buffers.push_back(buffer);
  }
  // A parent has a lower number than its children; a module that stands twice may be below a group of a higher number.
  for (bool has_children : {false, true})
    for (int i = static_cast<int>(model.nodes.size()) - 1; i >= 0; --i) {
      const auto& node = model.nodes[static_cast<size_t>(i)];
      if ((i == 0 || node.is_group) && (node.cell == Cell::kSequence) == has_children) group_nodes.push_back(i);
    }
  owners.assign(parameters.size(), 0);
  for (int group : std::vector<int>(group_nodes.rbegin(), group_nodes.rend())) {
    const auto below = modules[static_cast<size_t>(group)]->parameters();
    for (size_t i = 0; i < parameters.size(); ++i)
      for (const auto& tensor : below)
        if (tensor.is_same(parameters[i].tensor)) owners[i] = group;
  }
}

std::vector<Tensor> Net::owned_by(int group) const {
  std::vector<Tensor> some;
  for (size_t i = 0; i < parameters.size(); ++i)
    if (owners[i] == group && !parameters[i].is_ignored) some.push_back(parameters[i].tensor);
  return some;
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

std::vector<Tensor> Net::ignored_below(int node) const {
  std::vector<Tensor> some;
  const auto below = modules[static_cast<size_t>(node)]->parameters();
  for (const auto& parameter : parameters)
    for (size_t i = 0; parameter.is_ignored && i < below.size(); ++i)
      if (below[i].is_same(parameter.tensor)) {
        some.push_back(parameter.tensor);
        break;
      }
  return some;
}

}  // namespace fsdp::test::fuzz
