#include "progress.h"

#include <algorithm>
#include <iostream>

#include "table.h"

namespace ckpt {
namespace {

constexpr uint64_t kLarge = uint64_t{256} << 20;

}  // namespace

void Progress::add(uint64_t bytes) {
  done_ = std::min(done_ + bytes, total_);
  if (total_ < kLarge) return;
  const auto tenths = done_ / (total_ / 10);
  if (tenths == printed_tenths_ || tenths > 10) return;
  printed_tenths_ = tenths;
  std::cerr << "fsdp-ckpt: " << tenths * 10 << " % of " << text_of_bytes(total_) << std::endl;
}

}  // namespace ckpt
