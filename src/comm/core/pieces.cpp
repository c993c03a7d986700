#include "comm/core/pieces.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

namespace fsdp {

std::vector<int64_t> even_split(int64_t numel, int world_size) {
  std::vector<int64_t> offsets;
  for (int rank = 0; rank <= world_size; ++rank) offsets.push_back(numel * rank / world_size);
  return offsets;
}

at::Tensor stretch_of(const at::Tensor& flat, int64_t begin, int64_t count) {
  return count == flat.numel() ? flat : flat.narrow(0, begin, count);
}

at::Tensor slice_of(const at::Tensor& flat, std::span<const int64_t> offsets, int rank) {
  return flat.narrow(0, offsets[rank], offsets[rank + 1] - offsets[rank]);
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

int64_t largest_slice(std::span<const int64_t> offsets) {
  int64_t largest = 0;
  for (size_t rank = 1; rank < offsets.size(); ++rank) largest = std::max(largest, offsets[rank] - offsets[rank - 1]);
  return largest;
}

at::Tensor assemble(std::vector<Piece> pieces, int64_t numel, const at::TensorOptions& options) {
  if (pieces.size() == 1 && pieces[0].values.numel() == numel) return pieces[0].values.detach();
  auto whole = at::empty({numel}, options);
  assemble_into(whole, std::move(pieces));
  return whole;
}

void assemble_into(const at::Tensor& output, std::vector<Piece> pieces) {
  const at::NoGradGuard no_grad;
  const auto clear = [&](int64_t begin, int64_t end) {
    if (begin < end) stretch_of(output, begin, end - begin).zero_();
  };
  int64_t end = 0;
  for (auto& [first, values] : pieces) {
    clear(end, first);
    stretch_of(output, first, values.numel()).copy_(values);
    end = first + values.numel();
    values.reset();
  }
  clear(end, output.numel());
}

std::vector<Piece> cut(std::span<const Piece> pieces, int64_t begin, int64_t end) {
  std::vector<Piece> stretch;
  for (const auto& [first, values] : pieces) {
    const int64_t from = std::max(first, begin), to = std::min(first + values.numel(), end);
    if (from < to) stretch.push_back({from - begin, values.narrow(0, from - first, to - from)});
  }
  return stretch;
}

void visit_stretches(std::span<const Piece> pieces, int64_t begin, int64_t end,
                     const std::function<void(int64_t, int64_t, const std::byte*)>& visit) {
  auto piece = std::partition_point(pieces.begin(), pieces.end(), [&](const Piece& candidate) {
    return candidate.first + candidate.values.numel() <= begin;
  });
  while (begin < end) {
    const bool inside = piece != pieces.end() && piece->first <= begin;
    const int64_t border = piece == pieces.end() ? end : inside ? piece->first + piece->values.numel() : piece->first;
    const int64_t count = std::min(border, end) - begin;
    const auto* memory = inside ? static_cast<const std::byte*>(piece->values.const_data_ptr()) +
                                      (begin - piece->first) * piece->values.element_size()
                                : nullptr;
    if (count > 0) visit(begin, count, memory);
    begin += count;
    if (inside) ++piece;
  }
}

void copy_stretch(std::span<const Piece> pieces, int64_t begin, int64_t end, size_t element_bytes, std::byte* target) {
  visit_stretches(pieces, begin, end, [&](int64_t first, int64_t count, const std::byte* memory) {
    std::byte* place = target + static_cast<size_t>(first - begin) * element_bytes;
    const size_t bytes = static_cast<size_t>(count) * element_bytes;
    if (memory == nullptr)
      std::memset(place, 0, bytes);
    else
      std::memcpy(place, memory, bytes);
  });
}

}  // namespace fsdp
