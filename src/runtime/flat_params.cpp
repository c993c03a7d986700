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

c10::DataPtr data_of(const std::shared_ptr<SharedBuffer>& shared, c10::Device device) {
  auto* reference = new std::shared_ptr<SharedBuffer>(shared);
  return {shared->data(), reference, [](void* context) { delete static_cast<std::shared_ptr<SharedBuffer>*>(context); },
          device};
}

}  // namespace

FlatParams::FlatParams(const FlatForms& forms, layout::RowLayout layout, int rank,
                       std::shared_ptr<memory::ByteAccount> account)
    : layout_(std::move(layout)),
      rank_(rank),
      account_(std::move(account)),
      rows_{forms.rows, layout_.slice_numel(rank)},
      whole_{forms.whole, layout_.total_numel()},
      reduced_form_(forms.reduced) {}

// This rank's part of a whole buffer.
FlatPart FlatParams::own_slice(const std::shared_ptr<FlatBuffer>& whole) const {
  return {whole_.form, rows_.numel, whole, whole_.form.bytes(layout_.boundaries[rank_])};
}

void FlatParams::keep_on_disk(const std::string& folder, bool trains) {
  disk_.emplace(folder, rows_.bytes(), trains ? 4 : 1);
}

// Memory that every rank holds counts as each rank's own slice of it, so that the ranks' accounts add up.
void FlatParams::allocate_shard(std::shared_ptr<SharedBuffer> shared, std::shared_ptr<HostBuffer> on_host) {
  const at::NoGradGuard no_grad;
  shared_ = std::move(shared);
  on_host_ = std::move(on_host);
  if (shared_)
    shared_whole_ = std::make_shared<FlatBuffer>(data_of(shared_, whole_.form.device), whole_.form.bytes(rows_.numel),
                                                 account_, has_one_form() ? ByteClass::kRows : ByteClass::kWhole);
  if (rows_lie_in_whole()) {
    rows_ = own_slice(shared_whole_);
  } else {
    rows_.buffer = allocate_rows();
    rows_.tensor().zero_();  // padding between parameters travels too
  }
}

std::shared_ptr<FlatBuffer> FlatParams::allocate_rows() {
  if (host_) return host_->allocate(rows_.bytes());
  auto data = disk_ ? disk_->take(rows_.bytes()) : memory::allocate_block(rows_.form.device, rows_.bytes());
  return std::make_shared<FlatBuffer>(std::move(data), rows_.bytes(), account_,
                                      disk_ ? ByteClass::kDisk : ByteClass::kRows);
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
  if (shared_)
    whole_.buffer = shared_whole_;
  else if (kept_)
    whole_.buffer = kept_;
  else if (on_host_ && !fills_alone)
    whole_.buffer = held_on_host();
  else
    allocate_copy();
}

// What travels. In memory of a host, peers may still read what was gathered before.
at::Tensor FlatParams::slice_to_gather() {
  if (has_one_form()) return rows_.tensor();
  if (on_host_) return rows_.tensor().to(whole_.form.device, whole_.form.dtype);
  const auto slice = own_slice(whole_.buffer).tensor();
  if (host_)
    host_->bring(rows_, slice);
  else
    slice.copy_(rows_.tensor());
  return slice;
}

void FlatParams::publish() {
  const at::NoGradGuard no_grad;
  if (host_) return host_->publish(rows_, whole_.form.dtype);
  if (!shared_ || has_one_form()) return;
  own_slice(shared_whole_).tensor().copy_(rows_.tensor());
}

void FlatParams::start_gather(Communicator& communicator, Tag tag, const AllGather& with) {
  if (shared_) return;
  const at::NoGradGuard no_grad;
  const auto slice = slice_to_gather(), whole = whole_.tensor();
  if (with)
    gather_ = with(communicator, whole, slice, layout_.boundaries, std::move(tag));
  else
    gather_ = communicator.all_gather(whole, slice, layout_.boundaries, std::move(tag));
}

void FlatParams::keep_second_shard(const ProcessGroup& neighbours) {
  if (shared_) return;
  order_read();
  const bool are_here = std::ranges::all_of(neighbours.hosts(), [](int host) { return host == 0; });
  if (on_host_ && are_here && whole_.buffer->data() == on_host_->data())
    kept_ = whole_.buffer;
  else
    second_.take(whole_, neighbours.communicator(), account_);
}

void FlatParams::drop_second_shard() {
  second_.drop();
  kept_.reset();
}

void FlatParams::start_gather_among(Communicator& neighbours, Tag tag) {
  if (!kept_) gather_ = second_.start_gather(whole_, neighbours, std::move(tag));
}

void FlatParams::start_meeting(Communicator& communicator, Tag tag) { gather_ = communicator.barrier(std::move(tag)); }

void FlatParams::copy_whole() {
  const FlatPart seen = whole_;
  allocate_copy();
  whole_.tensor().copy_(seen.tensor());
}

void FlatParams::offload_whole() {
  const auto bytes = whole_.bytes();
  FlatPart host{whole_.form, whole_.numel,
                std::make_shared<FlatBuffer>(memory::allocate(c10::kCPU, bytes), bytes, account_, ByteClass::kWhole)};
  order_read();
  host.tensor().copy_(whole_.tensor());
  free_whole();
  whole_.buffer = host.buffer;
}

void FlatParams::end_gather() {
  gathered_ = std::exchange(gather_, nullptr);
  if (disk_) rows_.buffer->let_go();
}

void FlatParams::order_read() {
  if (!whole_.buffer || !whole_.buffer->uses().note_current()) return;
  if (gathered_) gathered_->wait();
  if (host_) host_->order_read();
}

void FlatParams::free_whole() {
  gather_.reset();
  gathered_.reset();
  whole_.buffer.reset();
}

FlatPart FlatParams::gradient_in(const memory::Form& form, memory::ReusedBlock& memory) {
  const auto bytes = form.bytes(rows_.numel);
  if (host_ && form == rows_.form) return {form, rows_.numel, host_->allocate(bytes)};
  if (disk_ && form == rows_.form)
    return {form, rows_.numel, std::make_shared<FlatBuffer>(disk_->take(bytes), bytes, account_, ByteClass::kDisk)};
  return {form, rows_.numel, std::make_shared<FlatBuffer>(memory.take(bytes), bytes, account_, ByteClass::kGradient)};
}

std::shared_ptr<FlatBuffer> FlatParams::allocate_state(size_t bytes) {
  auto data = disk_ ? disk_->take(bytes) : memory::allocate_block(rows_.form.device, bytes);
  const auto cls = disk_ ? ByteClass::kDisk : host_ ? ByteClass::kHost : ByteClass::kOptimizer;
  return std::make_shared<FlatBuffer>(std::move(data), bytes, account_, cls);
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

FlatPart FlatParams::allocate_gradient() { return gradient_in(rows_.form, gradient_memory_); }

FlatPart FlatParams::allocate_reduced() {
  return lands_elsewhere() ? gradient_in(reduced_form_, reduced_memory_) : allocate_gradient();
}

}  // namespace fsdp::runtime
