#include "state/sent_rows.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "state/torch_dtype.h"

namespace fsdp::state {
namespace {

constexpr uint64_t kMostSentBytes = uint64_t{16} << 20;  // at a time

}  // namespace

void send_rows(const SentRows& sent, layout::RowRange wanted, std::span<std::byte> out, const Ranks& ranks) {
  if (sent.bytes_per_row == 0) return;  // of any number of rows
  const auto step = static_cast<int64_t>(std::max<uint64_t>(kMostSentBytes / sent.bytes_per_row, 1));
  const auto end_of_all = sent.rows.first + sent.rows.count;
  for (int64_t first = sent.rows.first; first < end_of_all; first += step) {
    const auto count = std::min(step, end_of_all - first);
    const auto piece = at::empty({count * static_cast<int64_t>(sent.bytes_per_row)}, at::kByte);
    const auto bytes = mutable_bytes_in(piece);
    if (ranks.rank() == sent.root) sent.fill(first, count, bytes);
    ranks.broadcast(piece, sent.root, sent.tensor);
    const auto begin = std::max(first, wanted.first), end = std::min(first + count, wanted.first + wanted.count);
    if (begin >= end) continue;
    std::memcpy(out.data() + static_cast<uint64_t>(begin - wanted.first) * sent.bytes_per_row,
                bytes.data() + static_cast<uint64_t>(begin - first) * sent.bytes_per_row,
                static_cast<uint64_t>(end - begin) * sent.bytes_per_row);
  }
}

}  // namespace fsdp::state
