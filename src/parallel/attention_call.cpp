#include "parallel/attention_call.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <vector>

#include "comm/core/check.h"
#include "comm/group/attachment.h"

namespace fsdp::parallel {
namespace {

at::Tensor selected(const at::Tensor& mask, int64_t dim, const std::vector<int64_t>& positions) {
  if (mask.size(dim) == 1) return mask;
  return mask.index_select(dim, at::tensor(positions, at::kLong).to(mask.device()));
}

}  // namespace

std::shared_ptr<Communicator> AttentionPlan::queue() const { return Attachment::queue_for(*group, group, "attention"); }

void keep_plan(torch::autograd::AutogradContext& context, const c10::intrusive_ptr<AttentionPlan>& plan) {
  context.saved_data["plan"] = c10::IValue::make_capsule(plan);
}

c10::intrusive_ptr<AttentionPlan> kept_plan(torch::autograd::AutogradContext& context) {
  auto plan = c10::static_intrusive_pointer_cast<AttentionPlan>(context.saved_data["plan"].toCapsule());
  require(!at::GradMode::is_enabled(), plan->group->where("backward of scaled_dot_product_attention"),
          "attention over several ranks has no second derivative. Leave out create_graph");
  return plan;
}

std::optional<at::Tensor> AttentionCall::own_rows() const {
  if (!mask.defined()) return std::nullopt;
  return selected(mask, 2, plan->queries.positions(plan->rank()));
}

at::Tensor columns_of(const at::Tensor& mask, const AttentionPlan& plan, int64_t rank, int64_t keys) {
  if (!mask.defined()) return mask;
  auto positions = plan.keys.positions(rank);
  positions.resize(static_cast<size_t>(keys));
  return selected(mask, 3, positions);
}

BlockOperands operands_of(const AttentionPlan& plan, const Block& block, const at::Tensor& query, const at::Tensor& key,
                          const at::Tensor& value, const at::Tensor& mask) {
  const auto keys = [&](const at::Tensor& all) { return all.narrow(2, block.first_key, block.keys); };
  const bool has_rows = mask.defined() && mask.size(2) > 1;
  return {query.narrow(2, block.first_query, block.queries), keys(key), keys(value),
          has_rows ? mask.narrow(2, block.first_query, block.queries) : mask, block.is_causal, plan.scale};
}

}  // namespace fsdp::parallel
