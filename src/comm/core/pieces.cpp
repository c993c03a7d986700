#include "comm/core/pieces.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

namespace fsdp {
namespace {

std::vector<at::Tensor> of_each(const auto& planes, const auto& tensor_of) {
  std::vector<at::Tensor> tensors;
  for (const auto& plane : planes) tensors.push_back(tensor_of(plane));
  return tensors;
}

// Elements that one call of an ATen kernel processes. The number is below the size from which ATen splits an operation
// among threads (at::internal::GRAIN_SIZE, 32768): memory and the network limit the speed of a sum, and a second thread
// pool would take cores from the computation. Blocks of this size also fit into the caches.
constexpr int64_t kBlock = 32'000;

void combine(const at::Tensor& result, const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
  at::Tensor out = result;
  if (op == ReduceOp::kSum) at::add_out(out, a, b);
  if (op == ReduceOp::kMax) at::maximum_out(out, a, b);
  if (op == ReduceOp::kMin) at::minimum_out(out, a, b);
}

void reduce_block(const at::Tensor& output, std::span<const at::Tensor> contributions, int own, ReduceOp op) {
  // The first contribution of another rank holds the total until the last step.
  const at::Tensor& scratch = contributions[own == 0 ? 1 : 0];
  const size_t last = contributions.size() - 1;
  combine(last == 1 ? output : scratch, contributions[0], contributions[1], op);
  for (size_t i = 2; i <= last; ++i) combine(i == last ? output : scratch, scratch, contributions[i], op);
}

}  // namespace

at::Tensor narrow_flat(const at::Tensor& flat, int64_t begin, int64_t count) {
  return count == flat.numel() ? flat : flat.narrow(0, begin, count);
}

at::Tensor slice_of(const at::Tensor& flat, int64_t length, int rank) {
  const int64_t begin = std::min(rank * length, flat.numel());
  return narrow_flat(flat, begin, std::min(length, flat.numel() - begin));
}

std::vector<at::Tensor> slices_of(std::span<const GatherPlane> planes, int rank) {
  return of_each(planes, [&](const auto& plane) { return slice_of(plane.output, plane.input.numel(), rank); });
}

std::vector<at::Tensor> slices_of(std::span<const ReducePlane> planes, int rank) {
  return of_each(planes,
                 [&](const auto& plane) { return slice_of(plane.input.front().values, plane.output.numel(), rank); });
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

void copy_bytes(std::span<const at::Tensor> targets, std::span<const at::Tensor> sources) {
  for (size_t i = 0; i < targets.size(); ++i)
    copy_bytes(targets[i].mutable_data_ptr(), sources[i].const_data_ptr(), sources[i].nbytes());
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
    if (begin < end) narrow_flat(output, begin, end - begin).zero_();
  };
  int64_t end = 0;
  for (auto& [first, values] : pieces) {
    clear(end, first);
    narrow_flat(output, first, values.numel()).copy_(values);
    end = first + values.numel();
    values.reset();
  }
  clear(end, output.numel());
}

std::vector<Piece> cut(std::span<const Piece> pieces, int64_t begin, int64_t end) {
  std::vector<Piece> within;
  for (const auto& [first, values] : pieces) {
    const int64_t from = std::max(first, begin), to = std::min(first + values.numel(), end);
    if (from < to) within.push_back({from - begin, values.narrow(0, from - first, to - from)});
  }
  return within;
}

void visit_ranges(std::span<const Piece> pieces, int64_t begin, int64_t end,
                  const std::function<void(int64_t, int64_t, const std::byte*)>& visit) {
  auto piece = std::partition_point(pieces.begin(), pieces.end(), [&](const Piece& candidate) {
    return candidate.first + candidate.values.numel() <= begin;
  });
  for (; piece != pieces.end() && piece->first < end; ++piece) {
    const auto& [first, values] = *piece;
    const int64_t from = std::max(first, begin), to = std::min(first + values.numel(), end);
    if (begin < from) visit(begin, from - begin, nullptr);
    const auto* memory = static_cast<const std::byte*>(values.const_data_ptr());
    if (from < to) visit(from, to - from, memory + (from - first) * values.element_size());
    begin = to;
  }
  if (begin < end) visit(begin, end - begin, nullptr);
}

void copy_range(std::span<const Piece> pieces, int64_t begin, int64_t end, size_t element_bytes, std::byte* target) {
  visit_ranges(pieces, begin, end, [&](int64_t first, int64_t count, const std::byte* memory) {
    std::byte* place = target + static_cast<size_t>(first - begin) * element_bytes;
    const size_t bytes = static_cast<size_t>(count) * element_bytes;
    if (memory == nullptr)
      std::memset(place, 0, bytes);
    else
      std::memcpy(place, memory, bytes);
  });
}

void reduce_in_rank_order(const at::Tensor& output, std::span<const at::Tensor> contributions, int own, ReduceOp op,
                          double scale) {
  const int64_t numel = output.numel(), block = output.is_cpu() ? kBlock : numel;
  for (int64_t begin = 0; begin < numel; begin += block) {
    const int64_t length = std::min(block, numel - begin);
    std::vector<at::Tensor> blocks;
    for (const auto& contribution : contributions) blocks.push_back(narrow_flat(contribution, begin, length));
    const at::Tensor result = narrow_flat(output, begin, length);
    reduce_block(result, blocks, own, op);
    scale_in_place(result, scale);
  }
}

void scale_in_place(const at::Tensor& tensor, double scale) {
  if (scale == 1.0) return;
  // LibTorch first rounds a Scalar to the dtype of a low-precision tensor: 1/3 would be 0.19 % larger in bf16. An fp64
  // tensor without dims keeps the factor's precision.
  const at::Tensor factor = c10::scalar_to_tensor(scale);
  const int64_t numel = tensor.numel(), block = tensor.is_cpu() ? kBlock : numel;
  for (int64_t begin = 0; begin < numel; begin += block)
    narrow_flat(tensor, begin, std::min(block, numel - begin)).mul_(factor);
}

}  // namespace fsdp
