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
  std::string where(const char* call) const { return scope->group()->where(operation(call)); }
  static std::string operation(const char* call) { return str_cat("SequenceParallel::", call); }

  const std::shared_ptr<SequenceScope> scope;
  const SequenceScope::Entered entered;
};

SequenceParallel::SequenceParallel(std::shared_ptr<ProcessGroup> group, SequenceMethod method) {
  parallel::see_attention();
  if (!group) group = default_process_group();
  open_ = std::make_unique<Open>(std::make_shared<SequenceScope>(std::move(group), method));
}

SequenceParallel::~SequenceParallel() = default;

at::Tensor SequenceParallel::shard(const at::Tensor& whole, int64_t dim, double padding) const {
  const auto& scope = *open_->scope;
  const int64_t along = checked_dim(whole, dim, open_->where("shard"));
  const auto layout = open_->scope->deal(whole.size(along), Open::operation("shard"));
  if (layout.ranks == 1) return whole;
  const auto all = padded(whole, along, layout.chunks() * layout.chunk_length(), padding);
  std::vector<at::Tensor> own;
  for (const auto chunk : layout.chunks_of(scope.group()->rank()))
    own.push_back(all.narrow(along, chunk * layout.chunk_length(), layout.chunk_length()));
  return at::cat(own, along);
}

at::Tensor SequenceParallel::unshard(const at::Tensor& part, int64_t dim) const {
  const auto& scope = *open_->scope;
  const int64_t along = checked_dim(part, dim, open_->where("unshard"));
  const auto layout = scope.layout_of(part.size(along), Open::operation("unshard"));
  if (layout.ranks == 1) return part;
  const auto gathered = functional::all_gather(part, along, scope.group());
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
    all = scope->layout_of(length, "positions").positions(scope->group()->rank());
  } else {
    const int64_t first = parallel::TokenSlices::current().first_token;
    for (int64_t i = 0; i < length; ++i) all.push_back(first + i);
  }
  return at::tensor(all, at::kLong).to(device);
}

at::Tensor sequence_mean(const at::Tensor& sum, const at::Tensor& count) {
  const auto scope = SequenceScope::current();
  if (!scope) return sum / count;
  return functional::all_reduce(sum, scope->group()) / functional::all_reduce(count, scope->group());
}

}  // namespace fsdp
