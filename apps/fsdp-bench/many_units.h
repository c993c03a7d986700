#pragma once
/// \file
/// A model that has as many of one thing as wanted, and computes so little that it hides nothing of what the library
/// does.

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

namespace bench {

/// The elements of a unit, so few that at most 8 ranks have a row.
constexpr int64_t kUnitElements = 8;

struct UnitImpl : torch::nn::Module {
  UnitImpl() : weight(register_parameter("w", torch::ones({kUnitElements}))) {}
  torch::Tensor weight;
};
TORCH_MODULE(Unit);

/// What a model has many of: groups side by side, groups inside one another, or parameters of one group. Each unit is a
/// vector that forward multiplies by.
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
  // One by one: a chain of modules would end by as many calls inside one another.
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
