#pragma once
/// \file
/// Function that runs a region of forward on one chunk of its input after another.

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <fsdp/activation_checkpoint.h>

#include <cstdint>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup memory
/// \{

/// Computes `fn(x)` for `parts` chunks of `x` along `dim`, one after another, and returns the concatenated results. Use
/// this function for long sequences, for which feed-forward layers hold more memory than attention. The intermediate
/// activations of `fn` exist for one chunk at a time, also in backward, which recomputes each chunk (see
/// activation_checkpoint for the rules that `fn` must follow).
///
/// `fn` must treat the indices of `dim` independently, and its result must have as many indices of `dim` as its input.
/// Chunks are those of `x.chunk(parts, dim)`. Collective if `fn` is collective; then use the same `parts` and sizes on
/// every rank. Throws what `fn` throws.
///
///     x = x + fsdp::tiled(mlp, norm(x), /*dim=*/1, /*parts=*/8);
template <class Fn>
[[nodiscard]] at::Tensor tiled(Fn&& fn, const at::Tensor& x, int64_t dim, int64_t parts) {
  std::vector<at::Tensor> results;
  for (const auto& part : x.chunk(parts, dim)) results.push_back(activation_checkpoint(fn, part));
  return at::cat(results, dim);
}

/// \}

}  // namespace fsdp
#pragma GCC visibility pop
