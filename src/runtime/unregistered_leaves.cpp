#include "runtime/unregistered_leaves.h"

#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "comm/core/text.h"
#include "runtime/compat.h"

namespace fsdp::runtime {
namespace {

bool has_norm(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_nested() && !tensor.is_meta() &&
         !c10::isFloat8Type(tensor.scalar_type());
}

double norm_of(const at::Tensor& tensor) {
  const OwnOperators own_operators;
  const auto dtype = tensor.is_complex() ? at::kComplexDouble : at::kDouble;
  return at::linalg_vector_norm(tensor.detach(), 2, std::nullopt, /*keepdim=*/false, dtype).item<double>();
}

}  // namespace

UnregisteredLeaves::Leaf& UnregisteredLeaves::entry_of(const at::Tensor& leaf) {
  if (leaves_.size() >= tidy_at_) {
    std::erase_if(leaves_, [](const auto& entry) { return entry.second.tensor.expired(); });
    tidy_at_ = 2 * leaves_.size() + 64;
  }
  auto place = leaves_.find(leaf.unsafeGetTensorImpl());
  if (place == leaves_.end() || place->second.tensor.expired())  // another tensor may have been at its address
    place =
        leaves_.insert_or_assign(leaf.unsafeGetTensorImpl(), Leaf{WeakTensor(leaf.getIntrusivePtr()), writes_}).first;
  return place->second;
}

void UnregisteredLeaves::leave_out(const at::Tensor& leaf) {
  std::lock_guard lock(mutex_);
  auto& entry = entry_of(leaf);
  entry.looks_left = 0;
  entry.is_left_out = true;
}

bool UnregisteredLeaves::is_left_out(const at::Tensor& leaf) {
  std::lock_guard lock(mutex_);
  return entry_of(leaf).is_left_out;
}

void UnregisteredLeaves::leave_out_leaf_of(const at::Tensor& gradient) {
  if (!looks()) return;
  std::lock_guard lock(mutex_);
  for (auto& [address, entry] : leaves_) {
    if (entry.looks_left == 0) continue;
    const auto leaf = entry.tensor.lock();
    if (leaf && leaf->grad().is_same(gradient)) entry.looks_left = 0;
  }
}

bool UnregisteredLeaves::trains(Leaf& leaf, const at::Tensor& tensor) {
  if (leaf.looks_left == 0) return false;
  const uint64_t writes = writes_;
  if (leaf.writes == writes && ++leaf.backwards <= kBackwardsOfAStep) return false;
  leaf.writes = writes;
  leaf.backwards = 1;
  --leaf.looks_left;
  const double norm = norm_of(tensor);
  const auto before = std::exchange(leaf.norm, norm);
  const bool has_changed = before && std::bit_cast<uint64_t>(*before) != std::bit_cast<uint64_t>(norm);
  if (has_changed) leaf.looks_left = 0;
  return has_changed;
}

std::vector<at::Tensor> UnregisteredLeaves::find_trained(std::span<const at::Tensor> leaves) {
  std::vector<at::Tensor> trained;
  std::lock_guard lock(mutex_);
  for (const auto& leaf : leaves)
    if (has_norm(leaf) && trains(entry_of(leaf), leaf)) trained.push_back(leaf);
  return trained;
}

std::string warning_of(const std::vector<at::Tensor>& trained) {
  constexpr size_t kListed = 8;
  TextWriter text;
  text << (trained.size() == 1 ? "a tensor of sizes " : "tensors of sizes ");
  for (size_t i = 0; i < std::min(trained.size(), kListed); ++i) text << (i > 0 ? ", " : "") << trained[i].sizes();
  if (trained.size() > kListed) text << " and " << trained.size() - kListed << " more";
  text << (trained.size() == 1 ? " trains, and no fully_shard call knows it"
                               : " train, and no fully_shard call knows them")
       << ": each rank trains its own. Register it with the module before fully_shard (register_parameter, "
          "register_module; layers in a std::vector belong in a torch::nn::ModuleList). Or average its gradient over "
          "the ranks before each step: fsdp::all_reduce_(t.mutable_grad()) and div_(fsdp::world_size()). One that is "
          "meant to be each rank's own is registered and named in FullyShardOptions::ignored_params. Each tensor is "
          "named once";
  return text.str();
}

}  // namespace fsdp::runtime
