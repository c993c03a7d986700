#include <fsdp/apply_activation_checkpointing.h>
#include <torch/nn/modules/container/sequential.h>

#include <string>

#include "comm/core/check.h"

namespace fsdp::detail {
namespace {

using Holder = std::unique_ptr<torch::nn::AnyModulePlaceholder>;

// Gives access to a private member: an explicit instantiation of a template may name it, and the template's friend
// function returns it.
template <auto kMember>
struct HolderMember {
  friend constexpr auto holder_of_module() { return kMember; }
};
constexpr auto holder_of_module();
template struct HolderMember<&torch::nn::AnyModule::content_>;

struct Search {
  const std::function<bool(const torch::nn::Module&)>& is_meant;
  std::vector<torch::nn::AnyModule*> found;

  void look_at(torch::nn::Module& module, const std::string& path) {
    auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(&module);
    if (sequential != nullptr)
      for (auto& child : *sequential)
        if (is_meant(*child.ptr())) found.push_back(&child);
    for (const auto& child : module.named_children()) {
      const auto name = path.empty() ? child.key() : path + '.' + child.key();
      require(sequential != nullptr || !is_meant(*child.value()), "fsdp::apply_activation_checkpointing: '", name,
              "' (", child.value()->name(), ") is called directly by the forward of ", module.name(),
              ", so it cannot be wrapped; only the modules of a torch::nn::Sequential can be wrapped. Call "
              "fsdp::activation_checkpoint(block, x) in that forward");
      look_at(*child.value(), name);
    }
  }
};

}  // namespace

std::vector<torch::nn::AnyModule*> called_by_sequentials(
    torch::nn::Module& root, const std::function<bool(const torch::nn::Module&)>& is_meant) {
  Search search{is_meant, {}};
  search.look_at(root, "");
  require(!search.found.empty(), "fsdp::apply_activation_checkpointing: no torch::nn::Sequential in ", root.name(),
          " has a module of the given types. Name the types of modules (BlockImpl), not of their holders (Block)");
  return search.found;
}

void replace_holder(torch::nn::AnyModule& child, Holder holder) { child.*holder_of_module() = std::move(holder); }

}  // namespace fsdp::detail
