#include "api/module_tree.h"

#include <algorithm>
#include <unordered_set>

#include "runtime/param_group.h"
#include "runtime/registry.h"

namespace fsdp {
namespace {

// Of a path longer than this the end is kept: in a chain of n modules whole paths would take memory of n^2.
constexpr size_t kLongestPath = 512;

std::string joined(const std::string& path, const std::string& name) {
  if (path.empty()) return name;
  auto whole = path + "." + name;
  return whole.size() <= kLongestPath ? whole : "..." + whole.substr(whole.size() - kLongestPath + 3);
}

// "torch::nn::LinearImpl" and "(anonymous namespace)::BlockImpl" read better without what is before the last colon.
std::string short_type(std::string type) {
  auto colon = type.rfind("::");
  if (colon != std::string::npos) type.erase(0, colon + 2);
  if (type.size() > 4 && type.ends_with("Impl")) type.resize(type.size() - 4);
  return type;
}

std::unique_ptr<ModuleNode> node_of(torch::nn::Module* module) {
  auto node = std::make_unique<ModuleNode>();
  node->type = short_type(module->name());
  node->identity = module;
  node->module = module;
  for (const auto& item : module->named_parameters(/*recurse=*/false))
    if (item.value().defined()) node->parameters.push_back({item.key(), item.value()});
  for (const auto& item : module->named_buffers(/*recurse=*/false))
    if (item.value().defined()) node->buffers.push_back({item.key(), item.value()});
  return node;
}

std::unique_ptr<ModuleNode> node_of(const torch::jit::Module& module) {
  auto node = std::make_unique<ModuleNode>();
  node->type = module.type()->name() ? module.type()->name()->name() : "ScriptModule";
  node->identity = module._ivalue().get();
  node->has_training_flag = module.hasattr("training");
  for (const auto& item : module.named_parameters(/*recurse=*/false))
    node->parameters.push_back({item.name, item.value});
  for (const auto& item : module.named_buffers(/*recurse=*/false))
    if (item.value.defined()) node->buffers.push_back({item.name, item.value});
  return node;
}

template <class Visit>
void visit_children(torch::nn::Module* module, const Visit& visit) {
  for (const auto& child : module->named_children()) visit(child.key(), child.value().get());
}

template <class Visit>
void visit_children(const torch::jit::Module& module, const Visit& visit) {
  for (const auto& child : module.named_children()) visit(child.name, child.value);
}

// Gives the node its place, and what it has its full names.
void put_below(ModuleNode& node, const std::string& path, const std::string& name) {
  node.name = name;
  node.path = joined(path, name);
  for (auto& parameter : node.parameters) parameter.name = joined(node.path, parameter.name);
  for (auto& buffer : node.buffers) buffer.name = joined(node.path, buffer.name);
}

// Not by calls inside one another: modules may be nested deeper than the stack allows.
template <class Module>
std::unique_ptr<ModuleNode> grow(Module module, const std::string& name = "") {
  auto root = node_of(module);
  put_below(*root, "", name);
  for (std::vector<std::pair<ModuleNode*, Module>> open{{root.get(), module}}; !open.empty();) {
    const auto [node, of] = open.back();
    open.pop_back();
    visit_children(of, [&, parent = node](const std::string& child_name, const Module& child) {
      parent->children.push_back(node_of(child));
      put_below(*parent->children.back(), parent->path, child_name);
      open.emplace_back(parent->children.back().get(), child);
    });
  }
  return root;
}

}  // namespace

std::unique_ptr<ModuleNode> module_tree(torch::nn::Module& module) { return grow(&module); }

std::unique_ptr<ModuleNode> module_tree(const torch::jit::Module& module) { return grow(module); }

std::unique_ptr<ModuleNode> module_tree(const std::vector<torch::nn::Module*>& modules) {
  auto node = std::make_unique<ModuleNode>();
  node->type = "list of " + std::to_string(modules.size()) + " modules";
  for (size_t i = 0; i < modules.size(); ++i) node->children.push_back(grow(modules[i], std::to_string(i)));
  return node;
}

std::optional<TensorCut> cut_of(const ModuleNode& node, const runtime::NamedParameter& parameter) {
  const auto* layer = dynamic_cast<const TensorParallelLayer*>(node.module);
  return layer ? layer->cut_of(parameter.name.substr(parameter.name.rfind('.') + 1)) : std::nullopt;
}

// Nor here by calls inside one another.
ModuleNode::~ModuleNode() {
  for (auto below = std::move(children); !below.empty();) {
    auto node = std::move(below.back());
    below.pop_back();
    std::ranges::move(node->children, std::back_inserter(below));
    node->children.clear();
  }
}

void visit_nodes(const ModuleNode& node, const std::function<void(const ModuleNode&)>& visit) {
  for (std::vector<const ModuleNode*> open{&node}; !open.empty();) {
    const auto& next = *open.back();
    open.pop_back();
    visit(next);
    for (auto child = next.children.rbegin(); child != next.children.rend(); ++child) open.push_back(child->get());
  }
}

// Every tensor of the subtree that `own` names at a node, once.
static std::vector<runtime::NamedParameter> collect(const ModuleNode& node,
                                                    std::vector<runtime::NamedParameter> ModuleNode::* own) {
  std::vector<runtime::NamedParameter> tensors;
  std::unordered_set<const void*> seen;
  visit_nodes(node, [&](const ModuleNode& below) {
    for (const auto& tensor : below.*own)
      if (seen.insert(tensor.tensor.unsafeGetTensorImpl()).second) tensors.push_back(tensor);
  });
  return tensors;
}

std::vector<runtime::NamedParameter> subtree_parameters(const ModuleNode& node) {
  return collect(node, &ModuleNode::parameters);
}

std::vector<runtime::NamedParameter> subtree_buffers(const ModuleNode& node) {
  return collect(node, &ModuleNode::buffers);
}

std::vector<runtime::NamedParameter> subtree_tensors(const ModuleNode& node) {
  auto tensors = subtree_parameters(node);
  std::ranges::move(subtree_buffers(node), std::back_inserter(tensors));
  return tensors;
}

std::shared_ptr<runtime::ParamGroup> group_at(const ModuleNode& node) {
  const auto owner = node.module == nullptr ? std::weak_ptr<torch::nn::Module>() : node.module->weak_from_this();
  const auto found = runtime::registry().find_module(node.identity, owner);
  const auto& group = found.group;
  if (!group || found.is_certain) return group;
  bool is_here = group->slots().empty() && subtree_parameters(node).empty();
  visit_nodes(node, [&](const ModuleNode& below) {
    for (const auto& [name, tensor] : below.parameters) {
      if (is_here) continue;
      const auto part = runtime::registry().find(tensor);
      is_here = part && part->group->keeps(*group);
    }
  });
  return is_here ? group : nullptr;
}

}  // namespace fsdp
