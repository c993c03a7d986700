#include "parallel/checked_call.h"

#include <cmath>
#include <string>

#include "comm/core/check.h"
#include "parallel/attention_call.h"

namespace fsdp::parallel {
namespace {

constexpr auto kOperation = "scaled_dot_product_attention";

class Checks {
 public:
  Checks(const SequenceScope& scope, const AttentionArguments& arguments) : scope_(scope), given_(arguments) {}

  AttentionCall call() const {
    require_operands();
    AttentionCall call{c10::make_intrusive<AttentionPlan>(),
                       four_dims(given_.query),
                       four_dims(given_.key),
                       four_dims(given_.value),
                       {}};
    auto& plan = *call.plan;
    plan.group = scope_.ring();
    plan.is_causal = given_.is_causal;
    plan.scale = given_.scale.value_or(1 / std::sqrt(static_cast<double>(given_.query.size(-1))));
    const int64_t parts = scope_.ranks_of(scope_.heads());
    plan.queries = scope_.layout_of(parts * call.query.size(2), kOperation);
    plan.keys = scope_.layout_of(parts * call.key.size(2), kOperation);
    expect(!given_.is_causal || plan.queries == plan.keys, "is_causal needs queries and keys of the same ",
           "length, found whole sequences of ", plan.queries.length, " and ", plan.keys.length,
           ". Give the mask as attn_mask.");
    if (given_.mask.defined()) call.mask = mask(plan);
    plan.name = str_cat("attention of queries ", call.query.sizes(), " and keys ", call.key.sizes(),
                        plan.is_causal        ? ", causal"
                        : call.mask.defined() ? ", masked"
                                              : "");
    return call;
  }

 private:
  template <class... Message>
  void expect(bool ok, const Message&... message) const {
    if (!ok) require(false, scope_.where(kOperation), message...);
  }

  void require_operands() const {
    const auto &query = given_.query, &key = given_.key, &value = given_.value;
    expect(given_.dropout == 0, "dropout inside attention is not supported, found a probability of ", given_.dropout,
           ": each rank would drop different attention weights without its peers knowing which. Set the probability to "
           "0 in a SequenceParallel scope, and apply dropout to the result of attention instead.");
    const auto is_dim = [&](const at::Tensor& tensor) { return tensor.dim() == query.dim(); };
    expect((query.dim() == 3 || query.dim() == 4) && is_dim(key) && is_dim(value),
           "expected queries, keys and values of three or four dims, [batch, heads, tokens, size], found ",
           query.sizes(), ", ", key.sizes(), " and ", value.sizes(), '.');
    expect(query.is_floating_point() && key.scalar_type() == query.scalar_type() &&
               value.scalar_type() == query.scalar_type(),
           "expected queries, keys and values of the same floating point dtype, found ", query.scalar_type(), ", ",
           key.scalar_type(), " and ", value.scalar_type(), '.');
    expect(key.size(0) == query.size(0) && value.size(0) == query.size(0) && key.size(-2) == value.size(-2) &&
               key.size(-1) == query.size(-1) && query.size(-2) > 0 && key.size(-2) > 0,
           "expected queries, keys and values of the same batch size, queries and keys of the same last dim, and as "
           "many keys as values, at least one of each, found ",
           query.sizes(), ", ", key.sizes(), " and ", value.sizes(), '.');
    if (query.dim() == 4) require_heads(query.size(1), key.size(1), value.size(1));
  }

  void require_heads(int64_t queries, int64_t keys, int64_t values) const {
    expect(keys == values && (keys == queries || (given_.enable_gqa && keys > 0 && queries % keys == 0)),
           "expected as many key and value heads as query heads or, with enable_gqa, a number that divides the number "
           "of query heads, found ",
           keys, ", ", values, " and ", queries, ", in this order.");
  }

  static at::Tensor four_dims(const at::Tensor& tensor) { return tensor.dim() == 3 ? tensor.unsqueeze(1) : tensor; }

  at::Tensor mask(const AttentionPlan& plan) const {
    auto mask = given_.mask;
    expect(!given_.is_causal, "expected attn_mask or is_causal, found both. Leave out one of them.");
    expect(!mask.requires_grad() || !at::GradMode::is_enabled(),
           "expected a mask that requires no gradient, found one that does. Detach the mask, or compute attention with "
           "a learned bias outside of the scope.");
    expect(mask.scalar_type() == at::kBool || mask.is_floating_point(),
           "expected a mask that is boolean or floating point, found ", mask.scalar_type(), '.');
    if (given_.query.dim() == 3 && mask.dim() == 3) mask = mask.unsqueeze(1);
    while (mask.dim() < 4) mask = mask.unsqueeze(0);
    const auto is = [](int64_t found, int64_t wanted) { return found == 1 || found == wanted; };
    const bool is_whole = mask.dim() == 4 && is(mask.size(0), given_.query.size(0)) &&
                          is(mask.size(1), given_.query.dim() == 3 ? 1 : given_.query.size(1)) &&
                          is(mask.size(2), plan.queries.length) && is(mask.size(3), plan.keys.length);
    expect(is_whole, "expected a mask for the whole sequences, of ", plan.queries.length, " queries and ",
           plan.keys.length, " keys, found sizes ", given_.mask.sizes(),
           ". Give every rank the whole mask: the scope takes this rank's part of it.");
    return mask;
  }

  const SequenceScope& scope_;
  const AttentionArguments& given_;
};

at::Tensor over_ring(SequenceMethod method, const AttentionCall& call) {
  if (!call.plan->group) return whole_attention(call);
  switch (method) {
    case SequenceMethod::kGather:
      return gathered_attention(call);
    case SequenceMethod::kRingSelfAttention:
      return ring_self_attention(call);
    default:
      return ring_attention(call);
  }
}

}  // namespace

at::Tensor attention_over_ranks(const SequenceScope& scope, const AttentionArguments& arguments) {
  const auto call = Checks(scope, arguments).call();
  const auto ring = [&](const AttentionCall& some) { return over_ring(scope.method(), some); };
  const auto output = scope.heads() ? attention_by_heads(call, scope.heads(), ring) : ring(call);
  return arguments.query.dim() == 3 ? output.squeeze(1) : output;
}

}  // namespace fsdp::parallel
