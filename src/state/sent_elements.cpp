#include "state/sent_elements.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "state/torch_dtype.h"

namespace fsdp::state {
namespace {

constexpr uint64_t kMostSentBytes = uint64_t{16} << 20;  // a broadcast sends at most this number of bytes

}  // namespace

void send_elements(const SentElements& sent, ElementRange wanted, std::span<std::byte> out, const Ranks& ranks) {
  const auto step = static_cast<int64_t>(kMostSentBytes / sent.element_bytes);
  const auto bytes_of = [&](int64_t count) { return static_cast<size_t>(count) * sent.element_bytes; };
  const auto end_of_all = sent.elements.first + sent.elements.count;
  for (int64_t first = sent.elements.first; first < end_of_all; first += step) {
    const ElementRange some{first, std::min(step, end_of_all - first)};
    const auto piece = at::empty({static_cast<int64_t>(bytes_of(some.count))}, at::kByte);
    const auto bytes = mutable_bytes_in(piece);
    if (ranks.rank() == sent.root) sent.fill(some, bytes);
    ranks.broadcast(piece, sent.root, sent.tensor);
    if (const auto common = overlap(some, wanted); common.count > 0)
      std::memcpy(out.data() + bytes_of(common.first - wanted.first), bytes.data() + bytes_of(common.first - first),
                  bytes_of(common.count));
  }
}

}  // namespace fsdp::state
