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
      shard_(forms.rows, forms.reduced, plane_.slice_numel, account_),
      whole_{forms.whole, plane_.numel()} {}

// This rank's part of a whole buffer.
FlatPart FlatParams::own_slice(const std::shared_ptr<FlatBuffer>& whole) const {
  return {whole_.form, rows().numel, whole, whole_.form.bytes(rank_ * plane_.slice_numel)};
}

// Memory that every rank holds counts as each rank's own slice of it, so that the ranks' accounts add up.
void FlatParams::allocate_shard(std::shared_ptr<SharedBuffer> shared, size_t first_byte,
                                std::shared_ptr<HostBuffer> on_host) {
  const at::NoGradGuard no_grad;
  on_host_ = std::move(on_host);
  if (shared)
    shared_whole_ = std::make_shared<FlatBuffer>(data_of(std::move(shared), first_byte, whole_.form.device),
                                                 whole_.form.bytes(rows().numel), account_,
                                                 has_one_form() ? ByteClass::kRows : ByteClass::kWhole);
  if (shared_whole_ && has_one_form())
    shard_.lie_in(own_slice(shared_whole_));
  else
    shard_.allocate();
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
  if (has_one_form()) return {whole, rows().tensor()};
  if (on_host_) return {whole, rows().tensor().to(whole_.form.device, whole_.form.dtype)};
  auto slice = own_slice(whole_.buffer).tensor();
  shard_.copy_to(slice);
  return {whole, slice};
}

void FlatParams::publish() {
  const at::NoGradGuard no_grad;
  shard_.publish(whole_.form.dtype);
  if (shared_whole_ && !has_one_form()) shard_.copy_to(own_slice(shared_whole_).tensor());
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

}  // namespace fsdp::runtime
