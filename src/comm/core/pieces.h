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

/// Where the slices begin and end when `numel` elements are dealt out evenly: world_size + 1 offsets.
std::vector<int64_t> even_split(int64_t numel, int world_size);
/// Elements [begin, begin + count) of a flat tensor, a view; the tensor itself if that is all of it.
at::Tensor stretch_of(const at::Tensor& flat, int64_t begin, int64_t count);
/// The slice of `rank`, a view.
at::Tensor slice_of(const at::Tensor& flat, std::span<const int64_t> offsets, int rank);
/// The elements of the largest slice.
int64_t largest_slice(std::span<const int64_t> offsets);

/// Of a contiguous tensor on the CPU, as long as that lives.
std::span<const std::byte> bytes_of(const at::Tensor& tensor);

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
