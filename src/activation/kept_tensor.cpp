#include "activation/kept_tensor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/StreamGuard.h>

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
  host_ =
      at::empty_strided(leaving_.sizes(), leaving_.strides(), leaving_.options().device(at::kCPU).pinned_memory(true));
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
    drop();
  } catch (const std::exception&) {
    // The exception means that the device has failed, so its streams do not have to wait for each other.
  }
}

void HostCopy::finish() {
  if (!leaving_.defined()) return;
  copied_.block(current_stream(device_));
  leaving_.reset();
}

void HostCopy::bring() {
  if (brought_) return;
  const at::NoGradGuard no_grad;
  const auto own = current_stream(device_);
  const auto side = c10::impl::VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_);
  c10::Event made(device_.type()), copied(device_.type());
  auto tensor = at::empty_strided(host_.sizes(), host_.strides(), host_.options().device(device_).pinned_memory(false));
  made.record(own);
  made.block(side);
  copied_.block(side);
  const c10::StreamGuard guard(side);
  tensor.copy_(host_, /*non_blocking=*/true);
  copied.record(side);
  brought_.emplace(Brought{std::move(tensor), own, std::move(copied)});
}

void HostCopy::drop() {
  if (!brought_) return;
  brought_->copied.block(brought_->stream);
  brought_.reset();
}

at::Tensor HostCopy::back() {
  const at::NoGradGuard no_grad;
  const auto own = current_stream(device_);
  const auto brought = brought_ && brought_->stream == own ? brought_->tensor : at::Tensor();
  drop();
  if (brought.defined()) return brought;
  copied_.block(own);
  return host_.to(device_, /*non_blocking=*/true);
}

KeptTensor::KeptTensor(const at::Tensor& tensor, bool offload, bool is_inside) {
  if (!tensor.defined()) return;
  requires_grad_ = tensor.requires_grad();
  version_.emplace(tensor);
  // The outer region's second run computes a nested region's inputs again, and groups keep sharded parameters.
  const bool is_own = !is_inside && !runtime::is_marked(*tensor.unsafeGetTensorImpl());
  if (offload && is_own && !tensor.is_cpu() && tensor.is_non_overlapping_and_dense()) {
    host_.emplace(tensor.detach());
  } else {
    saved_.emplace(tensor.detach(), /*is_output=*/false);  // detached, because the graph of forward has the history
    if (is_own && tensor.has_storage()) storage_ = tensor.storage().unsafeGetStorageImpl();
  }
}

at::Tensor KeptTensor::value() {
  if (!saved_ && !host_) return {};
  auto value = host_ ? host_->back() : saved_->unpack().detach();
  if (requires_grad_) value.requires_grad_();
  return value;
}

}  // namespace fsdp::activation
