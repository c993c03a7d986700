#pragma once
/// \file
/// A region of forward that processes its input in chunks.

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <fsdp/activation_checkpoint.h>

#include <cstdint>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup memory
/// \{

/// Computes `fn(x)` in `parts` chunks of `x` along `dim`, one after the other, and concatenates the results. Use it for
/// long sequences, whose feed-forward layers hold more memory than attention. The intermediate activations of `fn`
/// exist for one chunk at a time, also in backward, which recomputes each chunk (see activation_checkpoint for the
/// rules that `fn` must follow).
///
/// `fn` must treat the indices of `dim` independently, and its result must have as many of them. Chunks are those of
/// `x.chunk(parts, dim)`. Collective if `fn` is; then use the same `parts` and sizes on every rank. Throws what `fn`
/// throws.
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
