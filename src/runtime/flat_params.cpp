#include "runtime/flat_params.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "memory/block.h"
#include "memory/part_storage.h"

namespace fsdp::runtime {
namespace {

using memory::ByteClass;
using memory::FlatBuffer;

// Memory that every rank holds counts as each rank's own slice of it, so that the ranks' accounts add up.
std::shared_ptr<FlatBuffer> flat_buffer_on(const std::shared_ptr<SharedBuffer>& shared, c10::Device device,
                                           size_t charged_bytes, std::shared_ptr<memory::ByteAccount> account) {
  auto* reference = new std::shared_ptr<SharedBuffer>(shared);
  c10::DataPtr data(
      shared->data(), reference, [](void* context) { delete static_cast<std::shared_ptr<SharedBuffer>*>(context); },
      device);
  return std::make_shared<FlatBuffer>(std::move(data), charged_bytes, std::move(account), ByteClass::kRows);
}

}  // namespace

FlatParams::FlatParams(c10::ScalarType dtype, c10::Device device, layout::RowLayout layout, int rank,
                       std::shared_ptr<memory::ByteAccount> account)
    : dtype_(dtype), device_(device), layout_(std::move(layout)), rank_(rank), account_(std::move(account)) {}

void FlatParams::allocate_shard(std::shared_ptr<SharedBuffer> shared) {
  const at::NoGradGuard no_grad;
  shared_ = std::move(shared);
  size_t slice_bytes = static_cast<size_t>(layout_.slice_numel(rank_)) * element_size();
  if (shared_) {
    shard_ = flat_buffer_on(shared_, device_, slice_bytes, account_);
    shard_byte_offset_ = static_cast<size_t>(layout_.boundaries[rank_]) * element_size();
  } else {
    shard_ = std::make_shared<FlatBuffer>(memory::allocate_block(device_, slice_bytes), slice_bytes, account_,
                                          ByteClass::kRows);
    shard().zero_();  // padding between parameters travels too
  }
}

at::Tensor FlatParams::shard() const {
  return memory::flat_tensor(shard_, shard_byte_offset_, layout_.slice_numel(rank_), dtype_);
}

void FlatParams::allocate_copy() {
  whole_ = std::make_shared<FlatBuffer>(memory::allocate(device_, whole_bytes()), whole_bytes(), account_,
                                        ByteClass::kWhole);
}

void FlatParams::allocate_whole() {
  if (shared_)
    whole_ = shard_;
  else
    allocate_copy();
}

void FlatParams::start_gather(Communicator& communicator, Tag tag) {
  if (shared_) return;
  auto output = memory::flat_tensor(whole_, 0, layout_.total_numel(), dtype_);
  gather_ = communicator.all_gather(output, shard(), layout_.boundaries, std::move(tag));
}

void FlatParams::start_meeting(Communicator& communicator, Tag tag) { gather_ = communicator.barrier(std::move(tag)); }

void FlatParams::copy_whole() {
  allocate_copy();
  memory::flat_tensor(whole_, 0, layout_.total_numel(), dtype_)
      .copy_(memory::flat_tensor(shard_, 0, layout_.total_numel(), dtype_));
}

void FlatParams::end_gather() { gathered_ = std::exchange(gather_, nullptr); }

void FlatParams::order_read() {
  if (whole_ && whole_->uses().note_current() && gathered_) gathered_->wait();
}

void FlatParams::free_whole() {
  gather_.reset();
  gathered_.reset();
  whole_.reset();
}

}  // namespace fsdp::runtime
