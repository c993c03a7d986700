#pragma once
/// \file
/// A model that has many groups or parameters, and computes so little that its computation hides none of the library's
/// time.

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

namespace bench {

/// Number of elements of a unit. It is so small that at most 8 ranks have a row.
constexpr int64_t kUnitElements = 8;

struct UnitImpl : torch::nn::Module {
  UnitImpl() : weight(register_parameter("w", torch::ones({kUnitElements}))) {}
  torch::Tensor weight;
};
TORCH_MODULE(Unit);

/// What a model has many of: groups side by side, nested groups, or parameters of one group. Each is a vector by which
/// forward multiplies.
enum class ScalingUnit : uint8_t { kGroup, kNestedGroup, kParameter };

struct ManyUnitsImpl : torch::nn::Module {
  ManyUnitsImpl(ScalingUnit unit, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      if (unit == ScalingUnit::kParameter) {
        weights.push_back(register_parameter("w" + std::to_string(i), torch::ones({kUnitElements})));
        continue;
      }
      const bool is_inner = unit == ScalingUnit::kNestedGroup && i > 0;
      const Unit made;
      if (is_inner)
        units.back()->register_module("u", made);
      else
        register_module("u" + std::to_string(i), made);
      units.push_back(made);
      weights.push_back(made->weight);
    }
  }
  // Destroys nested units one by one. Otherwise a chain of modules would be destroyed by as many nested calls.
  ~ManyUnitsImpl() override {
    for (auto& unit : units)
      if (!unit->children().empty()) unit->unregister_module("u");
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& weight : weights) x = x * weight;
    return x.sum();
  }

  std::vector<Unit> units;
  std::vector<torch::Tensor> weights;
};
TORCH_MODULE(ManyUnits);

}  // namespace bench
