#include "comm/core/arguments.h"

#include <algorithm>

#include "comm/core/check.h"
#include "comm/core/fingerprint.h"

namespace fsdp {
namespace {

std::string of(std::string_view operation, const Tag& tag) {
  return tag.subject.empty() ? std::string(operation) : c10::str(operation, " of '", tag.subject, "'");
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const auto* a_begin = static_cast<const char*>(a.const_data_ptr());
  const auto* b_begin = static_cast<const char*>(b.const_data_ptr());
  return a_begin < b_begin + b.nbytes() && b_begin < a_begin + a.nbytes();
}

}  // namespace

void Arguments::check_tensor(const at::Tensor& tensor, std::string_view operation, const Tag& tag) const {
  const std::string place = where(rank, world_size, of(operation, tag));
  require(tensor.defined(), place, "the tensor is undefined.");
  require(tensor.layout() == at::kStrided && tensor.is_contiguous(), place,
          "expected a contiguous tensor, found sizes ", tensor.sizes(), " with layout ", tensor.layout(),
          ". Call contiguous() first.");
}

void Arguments::check_rank(int peer, std::string_view operation, const Tag& tag, bool may_be_self) const {
  require(peer >= 0 && peer < world_size && (may_be_self || peer != rank), where(rank, world_size, of(operation, tag)),
          "expected a rank from 0 to ", world_size - 1, may_be_self ? "" : " other than this one", ", found ", peer,
          ".");
}

void Arguments::check_message(const at::Tensor& tensor, int peer, std::string_view operation, const Tag& tag) const {
  check_tensor(tensor, operation, tag);
  check_rank(peer, operation, tag, /*may_be_self=*/false);
  constexpr size_t kMost = 8 * Fingerprint::kInlineVoteBytes;
  require(tag.votes.size() <= kMost, where(rank, world_size, of(operation, tag)), "expected at most ", kMost,
          " votes, found ", tag.votes.size(), ".");
}

void Arguments::check_offsets(std::span<const int64_t> offsets, int64_t numel, const at::Tensor& own,
                              std::string_view operation, const Tag& tag) const {
  const std::string place = where(rank, world_size, of(operation, tag));
  require(static_cast<int64_t>(offsets.size()) == world_size + 1 && offsets.front() == 0 && offsets.back() == numel &&
              std::is_sorted(offsets.begin(), offsets.end()),
          place, "expected ", world_size + 1, " ascending offsets from 0 to ", numel, ", found ",
          c10::ArrayRef<int64_t>(offsets.data(), offsets.size()), ".");
  require(own.numel() == offsets[rank + 1] - offsets[rank], place, "expected a part of ",
          offsets[rank + 1] - offsets[rank], " elements for this rank, found ", own.numel(), ".");
}

void Arguments::check_alike(const at::Tensor& a, const at::Tensor& b, std::string_view operation,
                            const Tag& tag) const {
  check_tensor(a, operation, tag);
  check_tensor(b, operation, tag);
  const std::string place = where(rank, world_size, of(operation, tag));
  require(a.dim() == 1 && b.dim() == 1, place, "expected flat tensors, found sizes ", a.sizes(), " and ", b.sizes(),
          ".");
  require(a.scalar_type() == b.scalar_type() && a.device() == b.device(), place,
          "expected input and output of one dtype and device, found ", a.scalar_type(), " on ", a.device(), " and ",
          b.scalar_type(), " on ", b.device(), ".");
}

void Arguments::check_all_gather(const at::Tensor& output, const at::Tensor& input, std::span<const int64_t> offsets,
                                 const Tag& tag) const {
  check_alike(output, input, "all_gather", tag);
  check_offsets(offsets, output.numel(), input, "all_gather", tag);
  const at::Tensor own = output.detach().narrow(0, offsets[rank], input.numel());
  require(own.const_data_ptr() == input.const_data_ptr() || !overlap(output, input),
          where(rank, world_size, of("all_gather", tag)),
          "the input overlaps the output without being this rank's part of it.");
}

void Arguments::check_reduce_scatter(const at::Tensor& output, std::span<const Piece> input,
                                     std::span<const int64_t> offsets, const Tag& tag) const {
  const std::string place = where(rank, world_size, of("reduce_scatter", tag));
  const int64_t numel = offsets.empty() ? 0 : offsets.back();
  check_tensor(output, "reduce_scatter", tag);
  int64_t end = 0;
  for (const auto& [first, values] : input) {
    check_alike(values, output, "reduce_scatter", tag);
    require(first >= end, place, "expected pieces in ascending order, found one from element ", first,
            " after one that ends at ", end, ".");
    require(!overlap(output, values), place, "the output overlaps the input.");
    end = first + values.numel();
  }
  check_offsets(offsets, std::max(numel, end), output, "reduce_scatter", tag);
  require(output.is_floating_point(), place, "expected a floating point tensor, found ", output.scalar_type(), ".");
}

}  // namespace fsdp
