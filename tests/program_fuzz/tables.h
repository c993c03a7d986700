#pragma once
/// \file
/// Tables of what programs consist of: the cells of models, optimizers, and the kinds of statements. Each is described
/// in one place, for all who draw, judge, run and print programs.

#include <torch/optim/optimizer.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "program_fuzz/net.h"

namespace fsdp::test::fuzz {

/// The parameters of a node in the dtype in which it computes; where fsdp sees to that they are the parameters.
struct Operands {
  const std::vector<torch::Tensor>& tensors;
  torch::Dtype dtype;
  torch::Tensor operator[](size_t place) const {
    return tensors[place].scalar_type() == dtype ? tensors[place] : tensors[place].to(dtype);
  }
};

constexpr int kWidth = -1, kSize = -2;  // in sizes: the width of the program, the size of the node

struct CellInfo {
  const char* name;
  int weight;  ///< how often it is drawn
  std::vector<std::vector<int>> sizes;
  torch::Tensor (*compute)(const torch::Tensor& h, const Operands& p, const torch::Tensor& mean, const Call& call);
};
const CellInfo& info_of(Cell cell);
/// Of the node's parameters.
std::vector<std::vector<int64_t>> sizes_of(const Program& program, const Node& node);

struct OptimizerInfo {
  const char* name;
  std::unique_ptr<torch::optim::Optimizer> (*make)(std::vector<torch::Tensor>);
  std::unique_ptr<torch::optim::Optimizer> (*make_torchs)(std::vector<torch::Tensor>);
  bool is_fused;  ///< fsdp::optim's
};
const OptimizerInfo& info_of(Optimizer optimizer);

/// What has to be so where a statement stands, beside what Rules::allow_otherwise says.
enum Needs : unsigned {
  kNothing = 0,
  kExists = 1,              ///< its model is there
  kOutside = kExists | 2,   ///< no scope of the model is open
  kSettled = kOutside | 4,  ///< and no gradients wait for a backward with synchronisation
  kNoRows = kExists | 8,    ///< no LocalRows of the model is open
  kAtTop = 16,              ///< in no other statement
  kNests = 32,              ///< in few others
  kGroup = 64,              ///< `node` has a group of its own
  kRows = 128,              ///< the first parameter of `node` can be written row by row
};

struct KindInfo {
  const char* name;
  int weight;  ///< how often it is tried; what is not allowed where it would stand is drawn again
  unsigned needs;
  double flag = 0.5;  ///< how probably it is set
  std::array<double, 3> values = {};
};
const KindInfo& info_of(Kind kind);

/// What has this name. Throws std::invalid_argument if nothing has.
Kind kind_named(const std::string& name);
Cell cell_named(const std::string& name);
Optimizer optimizer_named(const std::string& name);

}  // namespace fsdp::test::fuzz
