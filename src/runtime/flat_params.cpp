#include "runtime/flat_params.h"

#include <c10/core/Allocator.h>

namespace fsdp::runtime {
namespace {

using memory::ByteClass;
using memory::FlatBuffer;

}  // namespace

FlatParams::FlatParams(c10::ScalarType dtype, c10::Device device, layout::RowLayout layout,
                       Communicator& communicator, std::shared_ptr<memory::ByteAccount> account)
    : dtype_(dtype),
      device_(device),
      layout_(std::move(layout)),
      rank_(communicator.rank()),
      shares_memory_(communicator.shares_memory()),
      account_(std::move(account)) {
  size_t whole_bytes = static_cast<size_t>(layout_.total_numel()) * element_size();
  size_t slice_bytes = static_cast<size_t>(layout_.slice_numel(rank_)) * element_size();
  if (shares_memory_) {
    shard_ = std::make_shared<FlatBuffer>(communicator.allocate(whole_bytes, device_), whole_bytes, account_,
                                          ByteClass::kRows);
    shard_byte_offset_ = static_cast<size_t>(layout_.boundaries[rank_]) * element_size();
  } else {
    shard_ = std::make_shared<FlatBuffer>(c10::GetAllocator(device_.type())->allocate(slice_bytes), slice_bytes,
                                          account_, ByteClass::kRows);
  }
  shard().zero_();  // padding between parameters travels too
}

at::Tensor FlatParams::shard() const {
  return memory::flat_tensor(shard_, shard_byte_offset_, layout_.slice_numel(rank_), dtype_);
}

void FlatParams::start_gather(Communicator& communicator, const std::string& subject) {
  if (shares_memory_) {
    whole_ = shard_;
    return;
  }
  size_t bytes = static_cast<size_t>(layout_.total_numel()) * element_size();
  whole_ = std::make_shared<FlatBuffer>(communicator.allocate(bytes, device_), bytes, account_, ByteClass::kWhole);
  auto output = memory::flat_tensor(whole_, 0, layout_.total_numel(), dtype_);
  gather_ = communicator.all_gather(output, shard(), layout_.boundaries, Tag{subject, {}});
}

void FlatParams::finish_gather() {
  auto gather = std::exchange(gather_, nullptr);
  if (!gather) return;
  try {
    gather->wait();
  } catch (...) {
    whole_.reset();
    throw;
  }
}

void FlatParams::free_whole() {
  gather_.reset();
  whole_.reset();
}

}  // namespace fsdp::runtime
