#pragma once
/// \file
/// A part of forward that goes through its input piece by piece.

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <fsdp/activation_checkpoint.h>

#include <cstdint>
#include <vector>

#pragma GCC visibility push(default)
namespace fsdp {

/// \addtogroup memory
/// \{

/// `fn(x)` computed for `parts` parts of `x` along `dim`, one after the other, and joined again: for long sequences,
/// whose feed-forward layers hold more than attention does. What `fn` keeps on the way is there for one part at a time,
/// also in backward, which computes each part again (see activation_checkpoint, which says what `fn` may be and do).
///
/// `fn` treats the indices of `dim` independently of each other, and its result has as many of them. Parts are equal up
/// to one index; a dim that is shorter than `parts` has fewer. Collective where `fn` is: give the same `parts` and
/// sizes on every rank. Throws what `fn` throws.
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
