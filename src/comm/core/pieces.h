#pragma once
/// \file
/// Flat tensors: slices that belong to ranks, contributions that lie in several pieces, and their sums, whose order
/// decides the bits of the result.

#include <ATen/core/Tensor.h>
#include <fsdp/communicator.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace fsdp {

/// Elements [begin, begin + count) of a flat tensor, a view; the tensor itself if that is all of it.
at::Tensor narrow_flat(const at::Tensor& flat, int64_t begin, int64_t count);
/// A view of the slice of `rank` when every rank's slice has `length` elements. A slice that reaches beyond the end of
/// the tensor is cut off there.
at::Tensor slice_of(const at::Tensor& flat, int64_t length, int rank);
/// The slices of `rank` in all planes: in the outputs of a gather, or in the inputs of a reduction, each of which must
/// be a single piece here.
std::vector<at::Tensor> slices_of(std::span<const GatherPlane> planes, int rank);
std::vector<at::Tensor> slices_of(std::span<const ReducePlane> planes, int rank);
/// The tensors of all planes that hold this rank's own slices.
std::vector<at::Tensor> inputs_of(std::span<const GatherPlane> planes);
std::vector<at::Tensor> outputs_of(std::span<const ReducePlane> planes);
/// a / b, rounded up.
constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Slices of several tensors that lie behind one another begin at multiples of this many bytes, which suits all dtypes.
constexpr int64_t kSliceAlignment = 16;
constexpr int64_t align_slice(int64_t bytes) { return divide_up(bytes, kSliceAlignment) * kSliceAlignment; }

/// Copies `bytes`, unless both are the same memory: an empty tensor may have no address, which memcpy must not get.
void copy_bytes(void* target, const void* source, size_t bytes);
/// Copies tensors on the CPU in the calling thread, whereas copy_() would use a pool of threads.
void copy_bytes(const at::Tensor& target, const at::Tensor& source);
void copy_bytes(std::span<const at::Tensor> targets, std::span<const at::Tensor> sources);

/// The flat tensor of `numel` elements that `pieces` make up, zeros between them: the piece itself if it is all of it.
at::Tensor assemble(std::vector<Piece> pieces, int64_t numel, const at::TensorOptions& options);
/// Assembles the pieces in `output`, a flat tensor, and releases each piece once it is copied.
void assemble_into(const at::Tensor& output, std::vector<Piece> pieces);

/// What `pieces` have of [begin, end) of the flat tensor, as pieces of that range.
std::vector<Piece> cut(std::span<const Piece> pieces, int64_t begin, int64_t end);

/// Visits [begin, end) of the flat tensor in ascending ranges, `memory` null where no piece lies.
void visit_ranges(std::span<const Piece> pieces, int64_t begin, int64_t end,
                  const std::function<void(int64_t first, int64_t count, const std::byte* memory)>& visit);

/// Copies [begin, end) of the flat tensor to `target`, zeros where no piece lies. CPU only, in the calling thread.
void copy_range(std::span<const Piece> pieces, int64_t begin, int64_t end, size_t element_bytes, std::byte* target);

/// output = scale * (((c[0] + c[1]) + c[2]) + ...); or the maximum or minimum. At least two contributions, flat, of one
/// size.
///
/// Uses the contributions as scratch memory, except c[own], which stays as it is; `output` may be c[own] itself. On the
/// CPU it stays in the calling thread.
void reduce_in_rank_order(const at::Tensor& output, std::span<const at::Tensor> contributions, int own, ReduceOp op,
                          double scale = 1.0);

/// tensor *= scale, in the calling thread on the CPU.
void scale_in_place(const at::Tensor& tensor, double scale);

}  // namespace fsdp
