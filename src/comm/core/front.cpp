#include "comm/core/front.h"

#include <algorithm>

#include "comm/core/check.h"
#include "comm/core/log.h"

namespace fsdp {
namespace {

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const auto* a_begin = static_cast<const char*>(a.const_data_ptr());
  const auto* b_begin = static_cast<const char*>(b.const_data_ptr());
  return a_begin < b_begin + b.nbytes() && b_begin < a_begin + a.nbytes();
}

}  // namespace

/// One call while it is checked.
class Front::Call {
 public:
  Call(const Front& front, Operation operation, const Tag& tag)
      : front_(front), operation_(operation), tag_(tag), fingerprint_(make_fingerprint(operation, tag)) {}

  template <class... Message>
  void expect(bool ok, const Message&... message) const {
    if (!ok) require(false, prefix(), message...);
  }

  void expect_tensor(const at::Tensor& tensor) const {
    expect(tensor.defined(), "expected a tensor, found an undefined one.");
    expect(tensor.layout() == at::kStrided && tensor.is_contiguous(), "expected a contiguous tensor, found sizes ",
           tensor.sizes(), " with layout ", tensor.layout(), ". Call contiguous() first.");
    const auto device = tensor.device();
    if (front_.carrier_.empty() || device.is_cpu() || device == front_.device_) return;
    expect(!front_.device_.is_cpu(), front_.carrier_, " moves CPU tensors, found one on ", device,
           ". Use the backend \"nccl\".");
    expect(false, "this rank's tensors are on ", front_.device_, " or the CPU, found one on ", device, ".");
  }

  void expect_alike(const at::Tensor& a, const at::Tensor& b) const {
    expect_tensor(a);
    expect_tensor(b);
    expect(a.dim() == 1 && b.dim() == 1, "expected flat tensors, found sizes ", a.sizes(), " and ", b.sizes(), ".");
    expect(a.scalar_type() == b.scalar_type() && a.device() == b.device(),
           "expected input and output of one dtype and device, found ", a.scalar_type(), " on ", a.device(), " and ",
           b.scalar_type(), " on ", b.device(), ".");
  }

  /// `own` is this rank's slice of a flat tensor of `numel` elements.
  void expect_offsets(std::span<const int64_t> offsets, int64_t numel, const at::Tensor& own) const {
    expect(static_cast<int64_t>(offsets.size()) == front_.world_size() + 1 && offsets.front() == 0 &&
               offsets.back() == numel && std::is_sorted(offsets.begin(), offsets.end()),
           "expected ", front_.world_size() + 1, " ascending offsets from 0 to ", numel, ", found ",
           c10::ArrayRef<int64_t>(offsets.data(), offsets.size()), ".");
    const int64_t slice = offsets[front_.rank() + 1] - offsets[front_.rank()];
    expect(own.numel() == slice, "expected a slice of ", slice, " elements for this rank, found ", own.numel(), ".");
  }

  void expect_rank(int rank) const {
    expect(rank >= 0 && rank < front_.world_size(), "expected a rank from 0 to ", front_.world_size() - 1, ", found ",
           rank, ".");
  }

  /// `peer`: the root or the other rank, if there is one.
  Fingerprint of(const at::Tensor& data, std::span<const int64_t> offsets = {}, int peer = -1) {
    describe_data(fingerprint_, data, offsets);
    if (!offsets.empty()) fingerprint_.bytes = static_cast<uint64_t>(offsets.back()) * data.element_size();
    fingerprint_.peer = peer;
    if (logs(LogLevel::kDebug))
      log(LogLevel::kDebug, prefix(), str_cat(fingerprint_.bytes, " bytes of ", data.scalar_type()));
    return fingerprint_;
  }

 private:
  std::string prefix() const {
    std::string name(name_of(operation_));
    if (!tag_.text().empty()) name += str_cat(" of '", tag_.text(), "'");
    return front_.ranks_.where(name);
  }

  const Front& front_;
  const Operation operation_;
  const Tag& tag_;
  Fingerprint fingerprint_;
};

Fingerprint Front::checked_all_gather(const at::Tensor& output, const at::Tensor& input,
                                      std::span<const int64_t> offsets, const Tag& tag) const {
  Call call(*this, Operation::kAllGather, tag);
  call.expect_alike(output, input);
  call.expect_offsets(offsets, output.numel(), input);
  const at::Tensor own = output.detach().narrow(0, offsets[rank()], input.numel());
  call.expect(own.const_data_ptr() == input.const_data_ptr() || !overlap(output, input),
              "expected this rank's slice of the output as input, or memory of its own, found memory that overlaps the "
              "output elsewhere.");
  return call.of(output, offsets);
}

Fingerprint Front::checked_reduce_scatter(const at::Tensor& output, std::span<const Piece> input,
                                          std::span<const int64_t> offsets, const Tag& tag) const {
  Call call(*this, Operation::kReduceScatter, tag);
  call.expect_tensor(output);
  int64_t end = 0;
  for (const auto& [first, values] : input) {
    call.expect_alike(values, output);
    call.expect(first >= end, "expected pieces in ascending order, found one from element ", first,
                " after one that ends at ", end, ".");
    call.expect(!overlap(output, values),
                "expected an output with memory of its own, found one that overlaps the input.");
    end = first + values.numel();
  }
  call.expect_offsets(offsets, std::max(offsets.empty() ? 0 : offsets.back(), end), output);
  call.expect(output.is_floating_point(), "expected a floating point tensor, found ", output.scalar_type(), ".");
  return call.of(output, offsets);
}

Fingerprint Front::checked_all_reduce(const at::Tensor& tensor, ReduceOp op, const Tag& tag) const {
  Call call(*this, all_reduce_operation(op), tag);
  call.expect_tensor(tensor);
  return call.of(tensor);
}

Fingerprint Front::checked_broadcast(const at::Tensor& tensor, int root, const Tag& tag) const {
  Call call(*this, Operation::kBroadcast, tag);
  call.expect_tensor(tensor);
  call.expect_rank(root);
  return call.of(tensor, {}, root);
}

Fingerprint Front::checked_message(Operation operation, const at::Tensor& tensor, int peer, const Tag& tag) const {
  Call call(*this, operation, tag);
  call.expect_tensor(tensor);
  call.expect(world_size() > 1, "expected a process group with another rank, found one of 1 rank.");
  call.expect_rank(peer);
  call.expect(peer != rank(), "expected another rank than this one, found ", peer, ".");
  constexpr size_t kMost = 8 * Fingerprint::kInlineVoteBytes;
  call.expect(tag.votes.size() <= kMost, "expected at most ", kMost, " votes, found ", tag.votes.size(), ".");
  return call.of(tensor, {}, peer);
}

}  // namespace fsdp
