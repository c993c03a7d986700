#pragma once
/// \file
/// Tables of what programs consist of: cells of models, optimizers, and kinds of statements. Each is described in one
/// place, for drawing, judging, running and printing programs.

#include <torch/optim/optimizer.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "program_fuzz/net.h"

namespace fsdp::test::fuzz {

/// A node's parameters in the dtype in which it computes. They are the parameters themselves if fsdp makes that dtype.
struct Operands {
  const std::vector<torch::Tensor>& tensors;
  torch::Dtype dtype;
  torch::Tensor operator[](size_t place) const {
    return tensors[place].scalar_type() == dtype ? tensors[place] : tensors[place].to(dtype);
  }
};

constexpr int kWidth = -1, kSize = -2;  // in `sizes`: the width of the program, the size of the node
constexpr int kDepth = -3;              // as many rows of the width as make whole matrices too much padding

struct CellInfo {
  const char* name;
  int weight;  ///< how often it is drawn
  std::vector<std::vector<int>> sizes;
  torch::Tensor (*compute)(const torch::Tensor& h, const Operands& p, const torch::Tensor& mean, const Call& call);
};
const CellInfo& info_of(Cell cell);
/// The sizes of the node's parameters.
std::vector<std::vector<int64_t>> sizes_of(const Program& program, const Node& node);

struct OptimizerInfo {
  const char* name;
  std::unique_ptr<torch::optim::Optimizer> (*make)(std::vector<torch::Tensor>);
  std::unique_ptr<torch::optim::Optimizer> (*make_torchs)(std::vector<torch::Tensor>);
  bool is_fused;  ///< from fsdp::optim
};
const OptimizerInfo& info_of(Optimizer optimizer);

/// What a statement needs where it stands, besides what Rules::allow_otherwise says.
enum Needs : unsigned {
  kNothing = 0,
  kExists = 1,              ///< its model exists
  kOutside = kExists | 2,   ///< no scope of the model is open
  kSettled = kOutside | 4,  ///< and no gradients wait for a backward with synchronisation
  kNoRows = kExists | 8,    ///< no LocalRows of the model is open
  kAtTop = 16,              ///< it is inside no other statement
  kNests = 32,              ///< it is inside few others
  kGroup = 64,              ///< `node` has a group of its own
  kRows = 128,              ///< the first parameter of `node` can be written row by row
};

struct KindInfo {
  const char* name;
  int weight;  ///< how often it is tried; if it is not allowed where it would stand, another one is drawn
  unsigned needs;
  double flag = 0.5;  ///< the probability that `flag` is set
  std::array<double, 3> values = {};
};
const KindInfo& info_of(Kind kind);

/// The item with this name. Throws std::invalid_argument if there is none.
Kind kind_named(const std::string& name);
Cell cell_named(const std::string& name);
Optimizer optimizer_named(const std::string& name);

}  // namespace fsdp::test::fuzz
