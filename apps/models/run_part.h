#pragma once
/// \file
/// How models run their parts, which programs may change: a part may be computed again in backward, for instance.

#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>

namespace models {

/// One input, one result; what else it needs it has with it, by value.
using Part = std::function<at::Tensor(const at::Tensor&)>;
/// Empty: the part is called.
using RunPart = std::function<at::Tensor(const Part& part, const at::Tensor& x)>;

template <class Fn>
at::Tensor run_part(const RunPart& run, Fn part, const at::Tensor& x) {
  return run ? run(Part(std::move(part)), x) : part(x);
}

}  // namespace models
