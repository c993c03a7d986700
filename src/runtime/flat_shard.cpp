#include "runtime/flat_shard.h"

#include <utility>

#include "memory/block.h"

namespace fsdp::runtime {

using memory::ByteClass;
using memory::FlatBuffer;
using memory::FlatPart;

FlatShard::FlatShard(const memory::Form& rows, const memory::Form& reduced, int64_t numel,
                     std::shared_ptr<memory::ByteAccount> account)
    : rows_{rows, numel}, reduced_form_(reduced), account_(std::move(account)) {}

void FlatShard::keep_on_disk(const std::string& folder, bool trains) {
  disk_.emplace(folder, rows_.bytes(), trains ? 4 : 1);
}

void FlatShard::keep_on_host(c10::Device device, bool is_pinned, std::shared_ptr<memory::HostCopies> copies) {
  host_.emplace(device, is_pinned, std::move(copies), account_);
}

std::shared_ptr<FlatBuffer> FlatShard::on_disk(size_t bytes) {
  return std::make_shared<FlatBuffer>(disk_->take(bytes), bytes, account_, ByteClass::kDisk);
}

void FlatShard::allocate() {
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

void FlatShard::publish(c10::ScalarType whole) {
  if (host_) host_->publish(rows_, whole);
}

void FlatShard::copy_to(const at::Tensor& slice) {
  if (host_)
    host_->bring(rows_, slice);
  else
    slice.copy_(rows_.tensor());
}

void FlatShard::order_read() const {
  if (host_) host_->order_read();
}

void FlatShard::let_go() {
  if (disk_) rows_.buffer->let_go();
}

FlatPart FlatShard::gradient_in(const memory::Form& form, memory::ReusedBlock& memory) {
  const auto bytes = form.bytes(rows_.numel);
  if (host_ && form == rows_.form) return {form, rows_.numel, host_->allocate(bytes)};
  if (disk_ && form == rows_.form) return {form, rows_.numel, on_disk(bytes)};
  return {form, rows_.numel, std::make_shared<FlatBuffer>(memory.take(bytes), bytes, account_, ByteClass::kGradient)};
}

FlatPart FlatShard::allocate_gradient() { return gradient_in(rows_.form, gradient_memory_); }

FlatPart FlatShard::allocate_reduced() {
  return lands_elsewhere() ? gradient_in(reduced_form_, reduced_memory_) : allocate_gradient();
}

std::shared_ptr<FlatBuffer> FlatShard::allocate_state(size_t bytes) {
  if (disk_) return on_disk(bytes);
  return std::make_shared<FlatBuffer>(memory::allocate_block(rows_.form.device, bytes), bytes, account_,
                                      host_ ? ByteClass::kHost : ByteClass::kOptimizer);
}

std::optional<c10::Stream> FlatShard::stream_of_results() const {
  return host_ ? std::optional(host_->stream_of_results()) : std::nullopt;
}

void FlatShard::land(const at::Tensor& reduced, const FlatPart& rows) {
  if (host_) return host_->land(reduced, rows);
  memory::note_use(reduced);
  rows.tensor().copy_(reduced);
}

void FlatShard::finish_landing() {
  if (host_) host_->finish_landing();
}

void FlatShard::drop_landing() {
  if (host_) host_->drop_landing();
}

}  // namespace fsdp::runtime
