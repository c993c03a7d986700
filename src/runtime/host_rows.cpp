#include "runtime/host_rows.h"

#include <ATen/Context.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "comm/core/current_stream.h"
#include "memory/block.h"

namespace fsdp::runtime {
namespace {

using memory::FlatBuffer;
using memory::FlatPart;

// Returns the dtype in which values are copied between host and device.
c10::ScalarType narrower(c10::ScalarType on_host, c10::ScalarType on_device) {
  return c10::elementSize(on_device) < c10::elementSize(on_host) ? on_device : on_host;
}

}  // namespace

HostCopies::~HostCopies() {
  try {
    wait();
  } catch (const std::exception&) {
    // After a failure of the device no copy is under way.
  }
}

c10::Stream HostCopies::next_to_host(c10::Device device) {
  last_source_.reset();
  if (!to_host_ || to_host_->device() != device)
    to_host_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  return *to_host_;
}

void HostCopies::to_device(const at::Tensor& to, const FlatPart& from, bool is_pinned) {
  to.copy_(from.tensor(), /*non_blocking=*/is_pinned);
  if (is_pinned) note(from.buffer, to.device());
}

void HostCopies::to_host(const FlatPart& to, const at::Tensor& from, bool is_pinned) {
  memory::note_use(from);
  to.tensor().copy_(from, /*non_blocking=*/is_pinned);
  if (!is_pinned) return;
  note(to.buffer, from.device());
  last_source_ = from;
}

void HostCopies::note(const std::shared_ptr<FlatBuffer>& on_host, c10::Device device) {
  kept_.insert(on_host);
  const auto stream = current_stream(device);
  if (std::ranges::find(under_way_, stream) == under_way_.end()) under_way_.push_back(stream);
}

void HostCopies::wait() {
  if (under_way_.empty()) return;
  const auto last = under_way_.back();
  c10::Event over(last.device_type());
  under_way_.pop_back();
  for (const auto& stream : under_way_) {
    c10::Event event(stream.device_type());
    event.record(stream);
    event.block(last);
  }
  over.record(last);
  over.synchronize();
  under_way_.clear();
  kept_.clear();
  last_source_.reset();
}

HostRows::HostRows(c10::Device device, bool is_pinned, std::shared_ptr<HostCopies> copies,
                   std::shared_ptr<memory::ByteAccount> account)
    : device_(device), is_pinned_(is_pinned), copies_(std::move(copies)), account_(std::move(account)) {}

std::shared_ptr<FlatBuffer> HostRows::allocate(size_t bytes) const {
  auto data = is_pinned_ ? at::globalContext().getPinnedMemoryAllocator(device_.type())->allocate(bytes)
                         : memory::allocate_block(c10::kCPU, bytes);
  return std::make_shared<FlatBuffer>(std::move(data), bytes, account_, memory::ByteClass::kHost);
}

void HostRows::publish(const FlatPart& rows, c10::ScalarType whole) {
  const auto travels = narrower(rows.form.dtype, whole);
  if (travels == rows.form.dtype) return;
  if (!narrow_) {
    narrow_ = FlatPart{{travels, c10::kCPU}, rows.numel};
    narrow_->buffer = allocate(narrow_->bytes());
  }
  narrow_->tensor().copy_(rows.tensor());
}

void HostRows::bring(const FlatPart& rows, const at::Tensor& slice) {
  if (rows.numel == 0) return;
  const c10::DeviceGuard guard(device_);
  const auto& from = narrow_ ? *narrow_ : rows;
  const bool is_cast_there = from.form.dtype != slice.scalar_type();
  const auto arrives = is_cast_there ? at::empty_like(slice, slice.options().dtype(from.form.dtype)) : slice;
  copies_->to_device(arrives, from, is_pinned_);
  if (is_cast_there) slice.copy_(arrives);
  brought_.emplace(device_.type());
  brought_->record(current_stream(device_));
}

void HostRows::order_read() const {
  if (brought_) brought_->block(current_stream(device_));
}

void HostRows::land(const at::Tensor& reduced, const FlatPart& rows) {
  if (rows.numel == 0) return;
  const c10::DeviceGuard guard(device_);
  memory::note_use(reduced);
  const auto travels = narrower(rows.form.dtype, reduced.scalar_type());
  auto arrives = rows;
  if (travels != rows.form.dtype) {
    arrives = {{travels, c10::kCPU}, rows.numel};
    arrives.buffer = allocate(arrives.bytes());
    casts_.push_back({arrives, rows});
  }
  copies_->to_host(arrives, reduced.to(travels), is_pinned_);
}

void HostRows::finish_landing() {
  copies_->wait();
  for (const auto& [from, to] : std::exchange(casts_, {})) to.tensor().copy_(from.tensor());
}

}  // namespace fsdp::runtime
