#pragma once
/// \file
/// Flat tensors in pieces: contributions that lie in several places, slices that belong to ranks.

#include <ATen/core/Tensor.h>
#include <fsdp/communicator.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace fsdp {

/// Elements [begin, begin + count) of a flat tensor, a view; the tensor itself if that is all of it.
at::Tensor stretch_of(const at::Tensor& flat, int64_t begin, int64_t count);
/// A view of the slice of `rank` when every rank's slice has `length` elements. A slice that reaches beyond the end of
/// the tensor is cut off there.
at::Tensor slice_of(const at::Tensor& flat, int64_t length, int rank);
/// Those of all planes: of outputs, or of inputs that are one piece, all of it.
std::vector<at::Tensor> slices_of(std::span<const GatherPlane> planes, int rank);
std::vector<at::Tensor> slices_of(std::span<const ReducePlane> planes, int rank);
/// What of the planes is this rank's own.
std::vector<at::Tensor> inputs_of(std::span<const GatherPlane> planes);
std::vector<at::Tensor> outputs_of(std::span<const ReducePlane> planes);
/// What is left of `a` divided by `b` counts as a whole one.
constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Slices of several tensors lie behind one another from multiples of so many bytes on, which suits every dtype.
constexpr int64_t kSliceAlignment = 16;
constexpr int64_t align_slice(int64_t bytes) { return divide_up(bytes, kSliceAlignment) * kSliceAlignment; }

/// Copies `bytes`, unless both are the same memory: an empty tensor may have no address, which memcpy must not get.
void copy_bytes(void* target, const void* source, size_t bytes);
/// The same of whole tensors on the CPU, in the calling thread: copy_() would use a pool of threads.
void copy_bytes(const at::Tensor& target, const at::Tensor& source);
void copy_bytes(std::span<const at::Tensor> targets, std::span<const at::Tensor> sources);

/// The flat tensor of `numel` elements that `pieces` make up, zeros between them: the piece itself if it is all of it.
at::Tensor assemble(std::vector<Piece> pieces, int64_t numel, const at::TensorOptions& options);
/// The same into `output`, a flat tensor. Lets each piece go once it is copied.
void assemble_into(const at::Tensor& output, std::vector<Piece> pieces);

/// What `pieces` have of [begin, end) of the flat tensor, as pieces of that stretch.
std::vector<Piece> cut(std::span<const Piece> pieces, int64_t begin, int64_t end);

/// Visits [begin, end) of the flat tensor in ascending stretches, `memory` null where no piece lies.
void visit_stretches(std::span<const Piece> pieces, int64_t begin, int64_t end,
                     const std::function<void(int64_t first, int64_t count, const std::byte* memory)>& visit);

/// Copies [begin, end) of the flat tensor to `target`, zeros where no piece lies. CPU only, in the calling thread.
void copy_stretch(std::span<const Piece> pieces, int64_t begin, int64_t end, size_t element_bytes, std::byte* target);

}  // namespace fsdp
