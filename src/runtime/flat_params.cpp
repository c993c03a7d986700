#include "runtime/flat_params.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "memory/block.h"

namespace fsdp::runtime {
namespace {

using memory::ByteClass;
using memory::FlatBuffer;
using memory::FlatPart;

c10::DataPtr data_of(std::shared_ptr<SharedBuffer> shared, size_t first_byte, c10::Device device) {
  auto* data = static_cast<std::byte*>(shared->data()) + first_byte;
  return {data, new std::shared_ptr<SharedBuffer>(std::move(shared)),
          [](void* context) { delete static_cast<std::shared_ptr<SharedBuffer>*>(context); }, device};
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

void FlatParams::keep_on_host(bool is_pinned, std::shared_ptr<memory::HostCopies> copies) {
  host_.emplace(whole_.form.device, is_pinned, std::move(copies), account_);
}

std::shared_ptr<FlatBuffer> FlatParams::on_disk(size_t bytes) {
  return std::make_shared<FlatBuffer>(disk_->take(bytes), bytes, account_, ByteClass::kDisk);
}

void FlatParams::allocate_rows() {
  const auto bytes = rows_.bytes();
  if (host_)
    rows_.buffer = host_->allocate(bytes);
  else if (disk_)
    rows_.buffer = on_disk(bytes);
  else
    rows_.buffer = std::make_shared<FlatBuffer>(memory::allocate_block(rows_.form.device, bytes), bytes, account_,
                                                ByteClass::kRows);
  rows_.tensor().zero_();  // padding between parameters travels too
}

// This rank's part of a whole buffer.
FlatPart FlatParams::own_slice(const std::shared_ptr<FlatBuffer>& whole) const {
  return {whole_.form, rows_.numel, whole, whole_.form.bytes(rank_ * plane_.slice_numel)};
}

// Memory that every rank holds counts as each rank's own slice of it, so that the ranks' accounts add up.
void FlatParams::allocate_shard(std::shared_ptr<SharedBuffer> shared, size_t first_byte,
                                std::shared_ptr<HostBuffer> on_host) {
  const at::NoGradGuard no_grad;
  on_host_ = std::move(on_host);
  if (shared)
    shared_whole_ = std::make_shared<FlatBuffer>(data_of(std::move(shared), first_byte, whole_.form.device),
                                                 whole_.form.bytes(rows_.numel), account_,
                                                 has_one_form() ? ByteClass::kRows : ByteClass::kWhole);
  if (shared_whole_ && has_one_form())
    rows_ = own_slice(shared_whole_);
  else
    allocate_rows();
}

void FlatParams::allocate_copy() {
  auto data =
      keeps_whole_memory_ ? whole_memory_.take(whole_.bytes()) : memory::allocate(whole_.form.device, whole_.bytes());
  whole_.buffer = std::make_shared<FlatBuffer>(std::move(data), whole_.bytes(), account_, ByteClass::kWhole);
}

// Counts as this rank's part of what its host holds.
std::shared_ptr<FlatBuffer> FlatParams::held_on_host() {
  const auto ranks = static_cast<size_t>(on_host_->ranks());
  return std::make_shared<FlatBuffer>(on_host_->hold(), (whole_.bytes() + ranks - 1) / ranks, account_,
                                      ByteClass::kWhole);
}

void FlatParams::allocate_whole(bool fills_alone) {
  if (shared_whole_)
    whole_.buffer = shared_whole_;
  else if (kept_)
    whole_.buffer = kept_;
  else if (on_host_ && !fills_alone)
    whole_.buffer = held_on_host();
  else
    allocate_copy();
}

// In memory of a host, peers may still read what was gathered before.
GatherPlane FlatParams::plane_to_gather() {
  const at::NoGradGuard no_grad;
  const auto whole = whole_.tensor();
  if (has_one_form()) return {whole, rows_.tensor()};
  if (on_host_) return {whole, rows_.tensor().to(whole_.form.device, whole_.form.dtype)};
  auto slice = own_slice(whole_.buffer).tensor();
  copy_rows_to(slice);
  return {whole, slice};
}

// On the current stream.
void FlatParams::copy_rows_to(const at::Tensor& slice) {
  if (host_)
    host_->bring(rows_, slice);
  else
    slice.copy_(rows_.tensor());
}

void FlatParams::publish() {
  const at::NoGradGuard no_grad;
  if (host_) host_->publish(rows_, whole_.form.dtype);
  if (shared_whole_ && !has_one_form()) copy_rows_to(own_slice(shared_whole_).tensor());
}

void FlatParams::order_read() const {
  if (host_) host_->order_read();
}

void FlatParams::mark_cold() {
  if (disk_) rows_.buffer->mark_cold();
}

void FlatParams::keep_second_shard(const ProcessGroup& neighbours) {
  if (shared_whole_) return;
  const bool are_here = std::ranges::all_of(neighbours.hosts(), [](int host) { return host == 0; });
  if (on_host_ && are_here && whole_.buffer->data() == on_host_->data())
    kept_ = whole_.buffer;
  else
    second_ = copy_of_slice(neighbours.communicator());
}

FlatPart FlatParams::copy_of_slice(const Communicator& ranks) const {
  const at::NoGradGuard no_grad;
  FlatPart slice{whole_.form, whole_.numel / ranks.world_size()};
  slice.buffer = std::make_shared<FlatBuffer>(memory::allocate(slice.form.device, slice.bytes()), slice.bytes(),
                                              account_, ByteClass::kWhole);
  slice.tensor().copy_(whole_.tensor().narrow(0, ranks.rank() * slice.numel, slice.numel));
  return slice;
}

void FlatParams::drop_second_shard() {
  second_.buffer.reset();
  kept_.reset();
}

void FlatParams::copy_whole() {
  const FlatPart seen = whole_;
  allocate_copy();
  whole_.tensor().copy_(seen.tensor());
}

void FlatParams::offload_whole() {
  const auto bytes = whole_.bytes();
  FlatPart host{whole_.form, whole_.numel,
                std::make_shared<FlatBuffer>(memory::allocate(c10::kCPU, bytes), bytes, account_, ByteClass::kWhole)};
  host.tensor().copy_(whole_.tensor());
  whole_.buffer = host.buffer;
}

FlatPart FlatParams::gradient_in(const memory::Form& form, memory::ReusedBlock& memory) {
  const auto bytes = form.bytes(rows_.numel);
  if (host_ && form == rows_.form) return {form, rows_.numel, host_->allocate(bytes)};
  if (disk_ && form == rows_.form) return {form, rows_.numel, on_disk(bytes)};
  return {form, rows_.numel, std::make_shared<FlatBuffer>(memory.take(bytes), bytes, account_, ByteClass::kGradient)};
}

FlatPart FlatParams::allocate_gradient() { return gradient_in(rows_.form, gradient_memory_); }

FlatPart FlatParams::allocate_reduced() {
  return lands_elsewhere() ? gradient_in(reduced_form_, reduced_memory_) : allocate_gradient();
}

std::shared_ptr<FlatBuffer> FlatParams::allocate_state(size_t bytes) {
  if (disk_) return on_disk(bytes);
  return std::make_shared<FlatBuffer>(memory::allocate_block(rows_.form.device, bytes), bytes, account_,
                                      host_ ? ByteClass::kHost : ByteClass::kOptimizer);
}

std::optional<c10::Stream> FlatParams::stream_of_results() const {
  return host_ ? std::optional(host_->stream_of_results()) : std::nullopt;
}

void FlatParams::land(const at::Tensor& reduced, const FlatPart& rows) {
  if (host_) return host_->land(reduced, rows);
  memory::note_use(reduced);
  rows.tensor().copy_(reduced);
}

void FlatParams::finish_landing() {
  if (host_) host_->finish_landing();
}

void FlatParams::drop_landing() {
  if (host_) host_->drop_landing();
}

}  // namespace fsdp::runtime
