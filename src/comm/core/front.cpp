#include "comm/core/front.h"

#include <vector>

#include "comm/core/check.h"
#include "comm/core/pieces.h"

namespace fsdp {
namespace {

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const auto* a_begin = static_cast<const char*>(a.const_data_ptr());
  const auto* b_begin = static_cast<const char*>(b.const_data_ptr());
  return a_begin < b_begin + b.nbytes() && b_begin < a_begin + a.nbytes();
}

}  // namespace

/// Checks the arguments of one call and builds its fingerprint.
class Front::Call {
 public:
  Call(const Front& front, Operation operation, const Tag& tag)
      : front_(front), tag_(tag), fingerprint_(make_fingerprint(operation, tag)) {}

  template <class... Message>
  void expect(bool ok, const Message&... message) const {
    if (!ok) require(false, prefix(), message...);
  }

  void expect_tensor(const at::Tensor& tensor) const {
    expect(tensor.defined(), "expected a tensor, found an undefined one.");
    expect(tensor.layout() == at::kStrided && tensor.is_contiguous(),
           "expected a contiguous tensor, but this one with sizes ", tensor.sizes(), " and layout ", tensor.layout(),
           " is not. Call contiguous() first.");
    const auto device = tensor.device();
    if (front_.carrier_.empty() || device.is_cpu() || device == front_.device_) return;
    expect(!front_.device_.is_cpu(), front_.carrier_, " moves only CPU tensors, but this one is on ", device,
           ". Use the backend \"nccl\".");
    expect(false, "expected a tensor on this rank's device ", front_.device_, " or on the CPU, found one on ", device,
           ".");
  }

  void expect_alike(const at::Tensor& a, const at::Tensor& b) const {
    expect_tensor(a);
    expect_tensor(b);
    expect(a.dim() == 1 && b.dim() == 1, "expected flat tensors, found sizes ", a.sizes(), " and ", b.sizes(), ".");
    expect(a.scalar_type() == b.scalar_type() && a.device() == b.device(),
           "expected an input and an output of the same dtype and device, found ", a.scalar_type(), " on ", a.device(),
           " and ", b.scalar_type(), " on ", b.device(), ".");
  }

  void expect_rank(int rank) const {
    expect(rank >= 0 && rank < front_.world_size(), "expected a rank from 0 to ", front_.world_size() - 1, ", found ",
           rank, ".");
  }

  /// Returns the fingerprint of a call with these tensors. `peer` is the root or the other rank, or -1 if the operation
  /// has neither. See describe_data for `times`.
  Fingerprint of(std::span<const at::Tensor> tensors, int peer = -1, int times = 1) {
    expect(!tensors.empty(), "expected at least one tensor, found none.");
    for (const auto& tensor : tensors)
      expect(tensor.device() == tensors.front().device(), "expected all tensors on the same device, found some on ",
             tensors.front().device(), " and on ", tensor.device(), ".");
    describe_data(fingerprint_, tensors, times);
    fingerprint_.peer = peer;
    return fingerprint_;
  }
  Fingerprint of(const at::Tensor& tensor, int peer = -1) { return of({&tensor, 1}, peer); }

 private:
  std::string prefix() const {
    std::string name(name_of(fingerprint_.operation));
    if (!tag_.text().empty()) name += str_cat(" of '", tag_.text(), "'");
    return front_.ranks_.where(name);
  }

  const Front& front_;
  const Tag& tag_;
  Fingerprint fingerprint_;
};

Fingerprint Front::checked_all_gather(std::span<const GatherPlane> planes, const Tag& tag) const {
  Call call(*this, Operation::kAllGather, tag);
  std::vector<at::Tensor> outputs;
  for (const auto& [output, input] : planes) {
    call.expect_alike(output, input);
    call.expect(output.numel() == world_size() * input.numel(), "expected an output of ", world_size(),
                " times the input's ", input.numel(), " elements, found ", output.numel(), " elements.");
    const at::Tensor own = slice_of(output.detach(), input.numel(), rank());
    call.expect(own.const_data_ptr() == input.const_data_ptr() || !overlap(output, input),
                "expected an input that is this rank's slice of the output or has memory of its own, found one that "
                "overlaps the output elsewhere.");
    outputs.push_back(output);
  }
  return call.of(outputs);
}

Fingerprint Front::checked_reduce_scatter(std::span<const ReducePlane> planes, const Tag& tag) const {
  Call call(*this, Operation::kReduceScatter, tag);
  for (const auto& [output, input] : planes) {
    call.expect_tensor(output);
    call.expect(output.is_floating_point(), "expected a floating point tensor, found ", output.scalar_type(), ".");
    int64_t end = 0;
    for (const auto& [first, values] : input) {
      call.expect_alike(values, output);
      call.expect(first >= end, "expected pieces in ascending order, found one from element ", first,
                  " after one that ends at ", end, ".");
      call.expect(!overlap(output, values),
                  "expected an output with memory of its own, found one that overlaps the input.");
      end = first + values.numel();
    }
    call.expect(end <= world_size() * output.numel(), "expected pieces within ", world_size(), " times the output's ",
                output.numel(), " elements, found one that ends at element ", end, ".");
  }
  return call.of(outputs_of(planes), -1, world_size());
}

Fingerprint Front::checked_all_reduce(std::span<const at::Tensor> tensors, ReduceOp op, const Tag& tag) const {
  Call call(*this, all_reduce_operation(op), tag);
  for (const auto& tensor : tensors) {
    call.expect_tensor(tensor);
    call.expect(op == ReduceOp::kSum || !tensor.is_complex(), "expected real numbers for a maximum or minimum, found ",
                tensor.scalar_type(), ".");
  }
  return call.of(tensors);
}

Fingerprint Front::checked_all_to_all(const at::Tensor& output, const at::Tensor& input, const Tag& tag) const {
  Call call(*this, Operation::kAllToAll, tag);
  call.expect_alike(output, input);
  call.expect(input.numel() == output.numel() && input.numel() % world_size() == 0,
              "expected two tensors of equal size, a multiple of the world size ", world_size(), ", found ",
              output.numel(), " and ", input.numel(), " elements.");
  call.expect(!overlap(output, input), "expected an output with memory of its own, found one that overlaps the input.");
  return call.of(output);
}

Fingerprint Front::checked_broadcast(const at::Tensor& tensor, int root, const Tag& tag) const {
  Call call(*this, Operation::kBroadcast, tag);
  call.expect_tensor(tensor);
  call.expect_rank(root);
  return call.of(tensor, root);
}

Fingerprint Front::checked_message(Operation operation, const at::Tensor& tensor, int peer, const Tag& tag) const {
  Call call(*this, operation, tag);
  call.expect_tensor(tensor);
  call.expect(world_size() > 1, "expected a process group of at least 2 ranks, found one of 1 rank.");
  call.expect_rank(peer);
  call.expect(peer != rank(), "expected a rank other than this one, found ", peer, ".");
  return call.of(tensor, peer);
}

}  // namespace fsdp
