#pragma once
/// \file
/// Functions on flat tensors: slices that belong to ranks, contributions that are stored in several pieces, and sums in
/// a fixed order, because the order decides the bits of the result.

#include <ATen/core/Tensor.h>
#include <fsdp/communicator.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace fsdp {

/// Returns a view of elements [begin, begin + count) of a flat tensor, or the tensor itself if the range covers all of
/// it.
at::Tensor narrow_flat(const at::Tensor& flat, int64_t begin, int64_t count);
/// Returns a view of the slice of `rank`, where every rank's slice has `length` elements. A slice that reaches beyond
/// the end of the tensor is cut off there.
at::Tensor slice_of(const at::Tensor& flat, int64_t length, int rank);
/// Return the slices of `rank` in all planes: in the outputs of a gather, or in the inputs of a reduction. Each input
/// of a reduction must be a single piece.
std::vector<at::Tensor> slices_of(std::span<const GatherPlane> planes, int rank);
std::vector<at::Tensor> slices_of(std::span<const ReducePlane> planes, int rank);
/// Return the tensors of all planes that hold this rank's own slices.
std::vector<at::Tensor> inputs_of(std::span<const GatherPlane> planes);
std::vector<at::Tensor> outputs_of(std::span<const ReducePlane> planes);
/// Returns a / b, rounded up.
constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Where slices of several tensors are stored one after another, each begins at a multiple of this number of bytes,
/// which suits all dtypes.
constexpr int64_t kSliceAlignment = 16;
constexpr int64_t align_slice(int64_t bytes) { return divide_up(bytes, kSliceAlignment) * kSliceAlignment; }

/// Copies `bytes` bytes unless there are none or both addresses are equal. An empty tensor may have a null address, and
/// memcpy does not allow null.
void copy_bytes(void* target, const void* source, size_t bytes);
/// Copies tensors on the CPU in the calling thread; copy_() would use a thread pool.
void copy_bytes(std::span<const at::Tensor> targets, std::span<const at::Tensor> sources);

/// Returns the flat tensor of `numel` elements that `pieces` make up, with zeros where no piece lies. A single piece
/// that covers all of it is returned without a copy.
at::Tensor assemble(std::vector<Piece> pieces, int64_t numel, const at::TensorOptions& options);
/// Assembles the pieces in `output`, a flat tensor, and releases each piece once it has been copied.
void assemble_into(const at::Tensor& output, std::vector<Piece> pieces);

/// Returns the parts of `pieces` that lie in [begin, end) of the flat tensor, as pieces of that range.
std::vector<Piece> cut(std::span<const Piece> pieces, int64_t begin, int64_t end);

/// Calls `visit` for ascending ranges that cover [begin, end) of the flat tensor. `memory` points to the range's
/// elements; it is null where no piece lies.
void visit_ranges(std::span<const Piece> pieces, int64_t begin, int64_t end,
                  const std::function<void(int64_t first, int64_t count, const std::byte* memory)>& visit);

/// Copies [begin, end) of the flat tensor to `target`, with zeros where no piece lies. CPU only; runs in the calling
/// thread.
void copy_range(std::span<const Piece> pieces, int64_t begin, int64_t end, size_t element_bytes, std::byte* target);

/// Computes output = scale * (((c[0] + c[1]) + c[2]) + ...), or `scale` times the maximum or minimum. `c` stands for
/// `contributions`: two or more flat tensors of the same size.
///
/// The function overwrites contributions except c[own], which stays as it is unless `output` is c[own] itself. On the
/// CPU everything runs in the calling thread.
void reduce_in_rank_order(const at::Tensor& output, std::span<const at::Tensor> contributions, int own, ReduceOp op,
                          double scale = 1.0);

/// Multiplies `tensor` by `scale`. On the CPU it runs in the calling thread.
void scale_in_place(const at::Tensor& tensor, double scale);

}  // namespace fsdp
