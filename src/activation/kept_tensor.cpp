#include "activation/kept_tensor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/autograd/variable.h>

#include <exception>
#include <utility>

#include "comm/core/current_stream.h"
#include "runtime/compat.h"

namespace fsdp::activation {

HostCopy::HostCopy(at::Tensor tensor)
    : leaving_(std::move(tensor)), device_(leaving_.device()), copied_(device_.type()) {
  const at::NoGradGuard no_grad;
  const auto own = current_stream(device_);
  const auto side = c10::impl::VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_);
  host_ = at::empty(leaving_.sizes(), leaving_.options().device(at::kCPU).pinned_memory(true));
  c10::Event made(device_.type());
  made.record(own);
  made.block(side);
  const c10::StreamGuard guard(side);
  host_.copy_(leaving_, /*non_blocking=*/true);
  copied_.record(side);
}

HostCopy::~HostCopy() {
  try {
    finish();
  } catch (const std::exception&) {
    // A device that failed orders nothing any more.
  }
}

void HostCopy::finish() {
  if (!leaving_.defined()) return;
  copied_.block(current_stream(device_));
  leaving_.reset();
}

at::Tensor HostCopy::back() const {
  const at::NoGradGuard no_grad;
  copied_.block(current_stream(device_));
  return host_.to(device_, /*non_blocking=*/true);
}

KeptTensor::KeptTensor(const at::Tensor& tensor, bool offload, bool is_inside) {
  if (!tensor.defined()) return;
  requires_grad_ = tensor.requires_grad();
  versions_ = torch::autograd::impl::version_counter(tensor);
  if (versions_.enabled()) version_ = versions_.current_version();
  const bool is_own = !is_inside && !runtime::is_marked(*tensor.unsafeGetTensorImpl());  // a parameter is there anyway
  if (offload && is_own && !tensor.is_cpu()) {
    host_.emplace(tensor.detach());
  } else {
    saved_.emplace(tensor.detach(), /*is_output=*/false);  // without the history, which the graph has
    if (is_own) bytes_ = static_cast<int64_t>(tensor.nbytes());
  }
}

at::Tensor KeptTensor::value() const {
  if (!saved_ && !host_) return {};
  auto value = host_ ? host_->back() : saved_->unpack().detach();
  if (requires_grad_) value.requires_grad_();
  return value;
}

}  // namespace fsdp::activation
