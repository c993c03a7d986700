#pragma once
/// \file
/// Lets a program choose how models run their parts. For example, a program may let backward compute a part again.

#include <ATen/core/Tensor.h>

#include <functional>
#include <utility>

namespace models {

/// A part of a model with one input and one output. It captures everything else that it needs by value.
using Part = std::function<at::Tensor(const at::Tensor&)>;
/// Runs a part on `x`. If it is empty, the model calls the part itself.
using RunPart = std::function<at::Tensor(const Part& part, const at::Tensor& x)>;

template <class Fn>
at::Tensor run_part(const RunPart& run, Fn part, const at::Tensor& x) {
  return run ? run(Part(std::move(part)), x) : part(x);
}

}  // namespace models
