#include "comm/core/pieces.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

namespace fsdp {

at::Tensor stretch_of(const at::Tensor& flat, int64_t begin, int64_t count) {
  return count == flat.numel() ? flat : flat.narrow(0, begin, count);
}

at::Tensor slice_of(const at::Tensor& flat, int64_t length, int rank) {
  const int64_t begin = std::min(rank * length, flat.numel());
  return stretch_of(flat, begin, std::min(length, flat.numel() - begin));
}

namespace {

std::vector<at::Tensor> of_each(const auto& planes, const auto& tensor_of) {
  std::vector<at::Tensor> tensors;
  for (const auto& plane : planes) tensors.push_back(tensor_of(plane));
  return tensors;
}

}  // namespace

std::vector<at::Tensor> slices_of(std::span<const GatherPlane> planes, int rank) {
  return of_each(planes, [&](const auto& plane) { return slice_of(plane.output, plane.input.numel(), rank); });
}

std::vector<at::Tensor> slices_of(std::span<const ReducePlane> planes, int rank) {
  return of_each(planes, [&](const auto& plane) {
    return slice_of(plane.input.front().values, plane.output.numel(), rank);
  });
}

std::vector<at::Tensor> inputs_of(std::span<const GatherPlane> planes) {
  return of_each(planes, [](const auto& plane) { return plane.input; });
}

std::vector<at::Tensor> outputs_of(std::span<const ReducePlane> planes) {
  return of_each(planes, [](const auto& plane) { return plane.output; });
}

void copy_bytes(void* target, const void* source, size_t bytes) {
  if (bytes > 0 && source != target) std::memcpy(target, source, bytes);
}

void copy_bytes(const at::Tensor& target, const at::Tensor& source) {
  copy_bytes(target.mutable_data_ptr(), source.const_data_ptr(), source.nbytes());
}

void copy_bytes(std::span<const at::Tensor> targets, std::span<const at::Tensor> sources) {
  for (size_t i = 0; i < targets.size(); ++i) copy_bytes(targets[i], sources[i]);
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
