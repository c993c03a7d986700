#include <fsdp/sequence_parallel.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/tensor.h>
#include <fsdp/functional.h>

#include <string>
#include <utility>
#include <vector>

#include "comm/core/check.h"
#include "parallel/attention_operator.h"
#include "parallel/sequence_scope.h"
#include "parallel/token_slices.h"

namespace fsdp {
namespace {

using parallel::SequenceScope;

int64_t checked_dim(const at::Tensor& tensor, int64_t dim, const std::string& where) {
  require(tensor.defined(), where, "expected a tensor, found an undefined one.");
  require(-tensor.dim() <= dim && dim < tensor.dim(), where, "expected a dim of a tensor of sizes ", tensor.sizes(),
          ", found ", dim, '.');
  return dim < 0 ? dim + tensor.dim() : dim;
}

at::Tensor padded(const at::Tensor& tensor, int64_t dim, int64_t length, double padding) {
  std::vector<int64_t> pads(static_cast<size_t>(2 * (tensor.dim() - dim)), 0);
  pads.back() = length - tensor.size(dim);
  return pads.back() == 0 ? tensor : at::constant_pad_nd(tensor, pads, padding);
}

}  // namespace

struct SequenceParallel::Open {
  explicit Open(std::shared_ptr<SequenceScope> opened) : scope(opened), entered(std::move(opened)) {}
  std::string where(const char* call) const { return scope->where(operation(call)); }
  static std::string operation(const char* call) { return str_cat("SequenceParallel::", call); }

  const std::shared_ptr<SequenceScope> scope;
  const SequenceScope::Entered entered;
};

SequenceParallel::SequenceParallel(std::shared_ptr<ProcessGroup> group, SequenceMethod method) {
  parallel::see_attention();
  if (!group) group = default_process_group();
  const bool has_heads = method == SequenceMethod::kHeads;
  auto scope = has_heads ? std::make_shared<SequenceScope>(nullptr, std::move(group), method)
                         : std::make_shared<SequenceScope>(std::move(group), nullptr, method);
  open_ = std::make_unique<Open>(std::move(scope));
}

SequenceParallel::SequenceParallel(std::shared_ptr<ProcessGroup> ring, std::shared_ptr<ProcessGroup> heads,
                                   SequenceMethod method) {
  require(ring && heads && method != SequenceMethod::kHeads, "fsdp::SequenceParallel: ",
          "expected the process group of the ring, the process group that exchanges heads, and a method other than "
          "kHeads for the ring, found a null pointer or kHeads. To use a single axis, give only its process group and "
          "the method.");
  parallel::see_attention();
  open_ = std::make_unique<Open>(std::make_shared<SequenceScope>(std::move(ring), std::move(heads), method));
}

SequenceParallel::~SequenceParallel() = default;

at::Tensor SequenceParallel::shard(const at::Tensor& whole, int64_t dim, double padding) const {
  const auto& scope = *open_->scope;
  const int64_t along = checked_dim(whole, dim, open_->where("shard"));
  const auto layout = open_->scope->deal(whole.size(along), Open::operation("shard"));
  if (scope.ranks() == 1) return whole;
  const auto all = padded(whole, along, layout.chunks() * layout.chunk_length(), padding);
  std::vector<at::Tensor> own;
  for (const auto chunk : layout.chunks_of(scope.rank_of(scope.ring())))
    own.push_back(all.narrow(along, chunk * layout.chunk_length(), layout.chunk_length()));
  const int64_t length = layout.own_length() / layout.parts;
  return at::cat(own, along).narrow(along, scope.rank_of(scope.heads()) * length, length);
}

at::Tensor SequenceParallel::unshard(const at::Tensor& part, int64_t dim) const {
  const auto& scope = *open_->scope;
  const int64_t along = checked_dim(part, dim, open_->where("unshard"));
  const int64_t parts = scope.ranks_of(scope.heads());
  const auto layout = scope.layout_of(parts * part.size(along), Open::operation("unshard"));
  if (scope.ranks() == 1) return part;
  const auto of_ring = scope.heads() ? functional::all_gather(part, along, scope.heads()) : part;
  const auto gathered = scope.ring() ? functional::all_gather(of_ring, along, scope.ring()) : of_ring;
  std::vector<at::Tensor> ordered(static_cast<size_t>(layout.chunks()));
  int64_t place = 0;
  for (int64_t rank = 0; rank < layout.ranks; ++rank)
    for (const auto chunk : layout.chunks_of(rank)) {
      ordered[static_cast<size_t>(chunk)] = gathered.narrow(along, place, layout.chunk_length());
      place += layout.chunk_length();
    }
  return at::cat(ordered, along).narrow(along, 0, layout.length);
}

at::Tensor positions(int64_t length, at::Device device) {
  std::vector<int64_t> all;
  if (const auto scope = SequenceScope::current()) {
    const auto layout = scope->layout_of(length * scope->ranks_of(scope->heads()), "positions");
    const auto of_ring = layout.positions(scope->rank_of(scope->ring()));
    const auto first = of_ring.begin() + scope->rank_of(scope->heads()) * length;
    all.assign(first, first + length);
  } else {
    const int64_t first = parallel::TokenSlices::current().first_token;
    for (int64_t i = 0; i < length; ++i) all.push_back(first + i);
  }
  return at::tensor(all, at::kLong).to(device);
}

at::Tensor sequence_mean(const at::Tensor& sum, const at::Tensor& count) {
  const auto scope = SequenceScope::current();
  if (!scope) return sum / count;
  const auto of_all = [&](at::Tensor number) {
    for (const auto& axis : {scope->ring(), scope->heads()})
      if (axis) number = functional::all_reduce(number, axis);
    return number;
  };
  return of_all(sum) / of_all(count);
}

}  // namespace fsdp
