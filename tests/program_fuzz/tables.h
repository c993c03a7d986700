#pragma once
/// \file
/// Tables of the cells of models, the optimizers and the kinds of statements. Each row holds everything that is needed
/// to draw, judge, run and print its item.

#include <torch/optim/optimizer.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "program_fuzz/net.h"

namespace fsdp::test::fuzz {

/// A node's parameters in the dtype in which the node computes. If fsdp casts to that dtype, these are the parameters
/// themselves.
struct Operands {
  const std::vector<torch::Tensor>& tensors;
  torch::Dtype dtype;
  torch::Tensor operator[](size_t place) const {
    return tensors[place].scalar_type() == dtype ? tensors[place] : tensors[place].to(dtype);
  }
};

constexpr int kWidth = -1, kSize = -2;  // stand for the program's width and the node's size
constexpr int kDepth = -3;  // stands for a number of rows with which whole matrices would need too much padding

struct CellInfo {
  const char* name;
  int weight;  ///< relative frequency with which the cell is drawn
  std::vector<std::vector<int>> sizes;
  torch::Tensor (*compute)(const torch::Tensor& h, const Operands& p, const torch::Tensor& mean, const Call& call);
};
const CellInfo& info_of(Cell cell);
/// Returns the sizes of the node's parameters.
std::vector<std::vector<int64_t>> sizes_of(const Program& program, const Node& node);

struct OptimizerInfo {
  const char* name;
  std::unique_ptr<torch::optim::Optimizer> (*make)(std::vector<torch::Tensor>);
  std::unique_ptr<torch::optim::Optimizer> (*make_torchs)(std::vector<torch::Tensor>);
  bool is_fused;  ///< true for the optimizers of fsdp::optim
};
const OptimizerInfo& info_of(Optimizer optimizer);

/// Conditions on the place of a statement. Rules::allow_otherwise checks the others.
enum Needs : unsigned {
  kNothing = 0,
  kExists = 1,              ///< The statement's model exists.
  kOutside = kExists | 2,   ///< No scope of the statement's model is open.
  kSettled = kOutside | 4,  ///< In addition, no gradients wait for a reduction.
  kNoRows = kExists | 8,    ///< No LocalRows of the statement's model is open.
  kAtTop = 16,              ///< No other statement contains the statement.
  kNests = 32,              ///< Only few statements contain the statement.
  kGroup = 64,              ///< `node` has a param group of its own.
  kRows = 128,              ///< The first parameter of `node` can be written row by row.
};

struct KindInfo {
  const char* name;
  int weight;  ///< relative frequency with which the kind is tried; if it is not allowed, another kind is drawn
  unsigned needs;
  double flag = 0.5;  ///< probability that `flag` is set
  std::array<double, 3> values = {};
};
const KindInfo& info_of(Kind kind);

/// These functions return the item with this name, and throw std::invalid_argument if there is none.
Kind kind_named(const std::string& name);
Cell cell_named(const std::string& name);
Optimizer optimizer_named(const std::string& name);

}  // namespace fsdp::test::fuzz
