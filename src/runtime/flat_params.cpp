#include "runtime/flat_params.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <utility>

#include "comm/core/current_stream.h"

namespace fsdp::runtime {
namespace {

using memory::ByteClass;
using memory::FlatBuffer;
using memory::FlatPart;

// Returns the dtype in which values are copied between host and device.
c10::ScalarType narrower(c10::ScalarType on_host, c10::ScalarType on_device) {
  return c10::elementSize(on_device) < c10::elementSize(on_host) ? on_device : on_host;
}

}  // namespace

FlatParams::FlatParams(const FlatForms& forms, layout::Plane plane, int rank,
                       std::shared_ptr<memory::ByteAccount> account)
    : plane_(std::move(plane)),
      rank_(rank),
      account_(std::move(account)),
      rows_{forms.rows, plane_.slice_numel},
      whole_{forms.whole, plane_.numel()},
      reduced_form_(forms.reduced) {}

void FlatParams::keep_on_disk(const std::string& folder, bool trains) {
  disk_.emplace(folder, rows_.bytes(), trains ? 4 : 1);
}

void FlatParams::keep_on_host(std::shared_ptr<HostCopies> copies, bool is_pinned) {
  copies_ = std::move(copies);
  is_pinned_ = is_pinned;
}

std::shared_ptr<FlatBuffer> FlatParams::counted(c10::DataPtr data, size_t bytes, ByteClass cls) const {
  return std::make_shared<FlatBuffer>(std::move(data), bytes, account_, cls);
}

// Allocates memory for rows, gradients or optimizer state in host memory or in the file. Returns null if the plane uses
// neither.
std::shared_ptr<FlatBuffer> FlatParams::kept_elsewhere(size_t bytes) {
  if (!copies_) return disk_ ? counted(disk_->take(bytes), bytes, ByteClass::kDisk) : nullptr;
  auto data = is_pinned_ ? at::globalContext().getPinnedMemoryAllocator(whole_.form.device.type())->allocate(bytes)
                         : memory::allocate_block(c10::kCPU, bytes);
  return counted(std::move(data), bytes, ByteClass::kHost);
}

// Allocates host memory for a copy of the rows or of their gradient in `dtype`.
FlatPart FlatParams::allocate_on_host(c10::ScalarType dtype) {
  FlatPart part{{dtype, c10::kCPU}, rows_.numel};
  part.buffer = kept_elsewhere(part.bytes());
  return part;
}

FlatPart FlatParams::own_slice(const std::shared_ptr<FlatBuffer>& whole) const {
  return {whole_.form, rows_.numel, whole, whole_.form.bytes(rank_ * plane_.slice_numel)};
}

// Each rank's account counts only the rank's own slice of shared memory, so that the sum of the accounts is right.
void FlatParams::allocate_shard(std::shared_ptr<SharedBuffer> shared, size_t first_byte,
                                std::shared_ptr<HostBuffer> on_host) {
  const at::NoGradGuard no_grad;
  on_host_ = std::move(on_host);
  if (shared) {
    auto data = c10::InefficientStdFunctionContext::makeDataPtr(
        static_cast<std::byte*>(shared->data()) + first_byte, [shared](void*) {}, whole_.form.device);
    shared_whole_ = counted(std::move(data), whole_.form.bytes(rows_.numel),
                            has_one_form() ? ByteClass::kRows : ByteClass::kWhole);
  }
  if (shared_whole_ && has_one_form()) {
    rows_ = own_slice(shared_whole_);
    return;
  }
  const auto bytes = rows_.bytes();
  rows_.buffer = kept_elsewhere(bytes);
  if (!rows_.buffer) rows_.buffer = counted(memory::allocate_block(rows_.form.device, bytes), bytes, ByteClass::kRows);
  rows_.tensor().zero_();  // all-gathers send the padding between parameters too
}

void FlatParams::allocate_whole(bool fills_alone) {
  if (shared_whole_ || kept_) {
    whole_.buffer = shared_whole_ ? shared_whole_ : kept_;
  } else if (on_host_ && !fills_alone) {
    // This rank's account counts its share of the memory that the ranks of its host share.
    const auto ranks = static_cast<size_t>(on_host_->ranks());
    whole_.buffer = counted(on_host_->hold(), (whole_.bytes() + ranks - 1) / ranks, ByteClass::kWhole);
  } else {
    const auto bytes = whole_.bytes();
    auto data = keeps_whole_memory ? whole_memory_.take(bytes) : memory::allocate(whole_.form.device, bytes);
    whole_.buffer = counted(std::move(data), bytes, ByteClass::kWhole);
  }
}

// Rows of another form are cast into this rank's slice of the whole buffer. If the ranks of a host share that buffer,
// they are cast into a new tensor instead, because other ranks may still read the slice's values.
GatherPlane FlatParams::plane_to_gather() {
  const at::NoGradGuard no_grad;
  const auto whole = whole_.tensor();
  if (has_one_form()) return {whole, rows_.tensor()};
  if (on_host_) return {whole, rows_.tensor().to(whole_.form.device, whole_.form.dtype)};
  auto slice = own_slice(whole_.buffer).tensor();
  copy_rows_to(slice);
  return {whole, slice};
}

void FlatParams::copy_rows_to(const at::Tensor& slice) {
  if (!copies_) {
    slice.copy_(rows_.tensor());
    return;
  }
  if (rows_.numel == 0) return;
  const auto device = whole_.form.device;
  const c10::DeviceGuard guard(device);
  const auto& from = narrow_ ? *narrow_ : rows_;
  const bool is_cast_there = from.form.dtype != slice.scalar_type();
  const auto arrives = is_cast_there ? at::empty_like(slice, slice.options().dtype(from.form.dtype)) : slice;
  arrives.copy_(from.tensor(), /*non_blocking=*/is_pinned_);
  if (is_pinned_) copies_->note(from.buffer, device);
  if (is_cast_there) slice.copy_(arrives);
  brought_.emplace(device.type());
  brought_->record(current_stream(device));
}

void FlatParams::order_read() const {
  if (brought_) brought_->block(current_stream(whole_.form.device));
}

void FlatParams::publish() {
  const at::NoGradGuard no_grad;
  if (copies_ && narrower(rows_.form.dtype, whole_.form.dtype) != rows_.form.dtype) {
    if (!narrow_) narrow_ = allocate_on_host(whole_.form.dtype);
    narrow_->tensor().copy_(rows_.tensor());
  }
  if (shared_whole_ && !has_one_form()) copy_rows_to(own_slice(shared_whole_).tensor());
}

void FlatParams::keep_second_shard(const ProcessGroup& neighbours) {
  if (shared_whole_) return;
  const bool are_here = std::ranges::all_of(neighbours.hosts(), [](int number) { return number == 0; });
  if (on_host_ && are_here && whole_.buffer->data() == on_host_->data()) {
    kept_ = whole_.buffer;
    return;
  }
  const at::NoGradGuard no_grad;
  const auto& ranks = neighbours.communicator();
  second_.numel = whole_.numel / ranks.world_size();
  second_.buffer = counted(memory::allocate(second_.form.device, second_.bytes()), second_.bytes(), ByteClass::kWhole);
  second_.tensor().copy_(whole_.tensor().narrow(0, ranks.rank() * second_.numel, second_.numel));
}

void FlatParams::drop_second_shard() {
  second_.buffer.reset();
  kept_.reset();
}

void FlatParams::copy_whole() {
  auto copy = whole_;
  copy.buffer = counted(memory::allocate(whole_.form.device, whole_.bytes()), whole_.bytes(), ByteClass::kWhole);
  copy.tensor().copy_(whole_.tensor());
  whole_.buffer = copy.buffer;
}

FlatPart FlatParams::allocate_gradient(const memory::Form& form) {
  const bool is_of_rows = form == rows_.form;
  const auto bytes = form.bytes(rows_.numel);
  auto buffer = is_of_rows ? kept_elsewhere(bytes) : nullptr;
  auto& memory = is_of_rows ? gradient_memory_ : reduced_memory_;
  if (!buffer) buffer = counted(memory.take(bytes), bytes, ByteClass::kGradient);
  return {form, rows_.numel, std::move(buffer)};
}

std::shared_ptr<FlatBuffer> FlatParams::allocate_state(size_t bytes) {
  if (disk_) return kept_elsewhere(bytes);
  return counted(memory::allocate_block(rows_.form.device, bytes), bytes,
                 copies_ ? ByteClass::kHost : ByteClass::kOptimizer);
}

void FlatParams::land(const at::Tensor& reduced, const FlatPart& rows) {
  memory::note_use(reduced);
  if (!copies_) {
    rows.tensor().copy_(reduced);
    return;
  }
  if (rows.numel == 0) return;
  const c10::DeviceGuard guard(whole_.form.device);
  const auto travels = narrower(rows.form.dtype, reduced.scalar_type());
  auto arrives = rows;
  if (travels != rows.form.dtype) {
    arrives = allocate_on_host(travels);
    casts_.emplace_back(arrives, rows);
  }
  const auto source = reduced.to(travels);
  memory::note_use(source);
  arrives.tensor().copy_(source, /*non_blocking=*/is_pinned_);
  if (is_pinned_) copies_->note(arrives.buffer, whole_.form.device, source);
}

std::optional<c10::Stream> FlatParams::stream_of_results() const {
  return copies_ ? std::optional(copies_->next_to_host(whole_.form.device)) : std::nullopt;
}

void FlatParams::finish_landing() {
  if (copies_) copies_->wait();
  for (const auto& [from, to] : std::exchange(casts_, {})) to.tensor().copy_(from.tensor());
}

}  // namespace fsdp::runtime
