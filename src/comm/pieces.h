#pragma once
/// \file
/// Flat tensors in pieces.

#include <ATen/core/Tensor.h>
#include <fsdp/communicator.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace fsdp {

/// The flat tensor of `numel` elements that `pieces` make up, zeros between them: the piece itself if it is all of it.
/// Lets each piece go once it is copied.
at::Tensor assemble(std::vector<Piece> pieces, int64_t numel, const at::TensorOptions& options);
/// The same into `output`, a flat tensor.
void assemble(std::span<const Piece> pieces, const at::Tensor& output);

/// Visits [begin, end) of the flat tensor in ascending stretches, `memory` null where no piece lies.
void visit_stretches(std::span<const Piece> pieces, int64_t begin, int64_t end,
                     const std::function<void(int64_t first, int64_t count, const std::byte* memory)>& visit);

/// Copies [begin, end) of the flat tensor to `target`, zeros where no piece lies. CPU only, in the calling thread.
void copy_stretch(std::span<const Piece> pieces, int64_t begin, int64_t end, size_t element_bytes, std::byte* target);

}  // namespace fsdp
