#pragma once
/// \file
/// A program, executed.

#include <fsdp/device_mesh.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "program_fuzz/net.h"
#include "program_fuzz/tables.h"
#include "program_fuzz/values.h"

namespace fsdp::test::fuzz {

/// Errors that are planted to see that they are found.
enum class Plant : uint8_t {
  kNothing,
  kGradient,  ///< rank 1 adds a thousandth to the gradients that it shows
  kSkip,      ///< the unsharded run leaves out what optimizers and writes do
};

/// What a rank tells others while it runs. Each is called in the order of execution.
struct Watch {
  /// Before a statement.
  std::function<void(const Statement&)> begins;
  /// Where the statement's lag is to take place.
  std::function<void(const Lag&)> lags;
};

/// Meshes of all ranks of the default process group by the number of ranks along "shard", each made once.
using Meshes = std::map<int, DeviceMesh>;

/// Runs the program on this rank of the default process group. Collective. Throws what the library throws where the
/// program does not expect it.
std::vector<Value> run_sharded(const Program& program, int rank, const Watch& watch, Plant plant, Meshes& meshes);

/// The values of every rank, by a model for each of them that nobody shards: gradients of a backward are summed in rank
/// order and multiplied by 1/divisor once, as the library promises, so they have the same bits.
std::vector<Value> run_unsharded(const Program& program, Plant plant);

struct Graph {
  torch::Tensor x = {}, h = {}, y = {};
  uint32_t models = 0;  // bits
};

/// What one rank has and does by itself, sharded or not.
class Rank {
 public:
  Rank(const Program& program, int its_number) : number(its_number), program_(program) {}

  struct OfModel {
    std::unique_ptr<Net> net;
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    /// By the node of the group that they step in backward.
    std::map<int, std::unique_ptr<torch::optim::Optimizer>> steppers;
  };

  void forward(const Statement& statement);
  void grad(const Statement& statement);
  /// autograd's part: gradients of parameters are as autograd leaves them.
  void backward(const Statement& statement);
  torch::Tensor loss_that_throws(const Statement& statement, bool throws);
  /// Whether a parameter that is not ignored has any.
  bool has_gradients(const Statement& statement);

  /// Of a forward; what the rank brings to all_reduce and its kin, too, where it differs from rank to rank.
  torch::Tensor input(const Statement& s) const { return input_of({program_.samples, program_.width}, call(s)); }
  Call call(const Statement& s) const { return {number, s.seed, /*updates_buffers=*/true, &pause}; }
  Graph& graph(int slot) { return item(graphs, slot); }
  OfModel& of(const Statement& s) { return item(models, s.model); }
  Net& net(const Statement& s) { return *of(s).net; }
  NodeModule& module(const Statement& s) { return *item(net(s).modules, s.node); }
  /// What kWriteOneRow writes.
  torch::Tensor row_parameter(const Statement& s) { return module(s).parameters(/*recurse=*/false)[0]; }
  void record(const Statement& statement, Value value);
  void record(const Statement& statement, const torch::Tensor& tensor) { record(statement, value_of(tensor)); }
  /// The rows of a parameter, or of its gradient, that the rank has.
  void record_rows(const Statement& statement, const NetParameter& parameter, const torch::Tensor& rows);

  const int number;
  std::array<OfModel, kModels> models;
  std::array<Graph, kSlots> graphs;
  std::vector<Value> values;
  std::function<void()> pause;  // in the backward of a kPause
  /// How a forward calls the module of its node.
  std::function<torch::Tensor(const Statement&, const torch::Tensor& x, const Call&)> apply =
      [this](const Statement& s, const torch::Tensor& x, const Call& call) { return module(s).forward(x, call); };

 private:
  const Program& program_;
};

/// What the two runs have in common: the sharded one has one rank, the unsharded one has all.
class Run {
 public:
  virtual ~Run() = default;
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  /// Executes the program; at its end rows and gradients are compared.
  std::vector<Value> run();

 protected:
  Run(const Program& program, Plant plant, bool is_sharded)
      : program_(program), plant_(plant), is_sharded_(is_sharded) {}

  struct ModelState {
    std::vector<int> scopes;  // nodes of their groups
    bool has_local_rows = false;
    double tolerance = 0;  // how far its numbers may be from those of the sharded run
  };
  ModelState& state(const Statement& s) { return item(states_, s.model); }
  /// The group whose scope the statement opens, a kScope or a forward; -1 if one around its module is open.
  int scope_of(const Statement& statement);

  /// Before a statement.
  virtual void begin(const Statement&) {}
  /// Runs `body` in what the statement opens: a scope, a LocalRows, and so on.
  virtual void within(const Statement& statement, const std::function<void()>& body) = 0;
  /// Executes what the runs do in different ways, or only one of them does.
  virtual void execute_otherwise(const Statement& statement) = 0;
  virtual void made(const Statement& statement) = 0;
  virtual void will_drop(const Statement&) {}

  std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Statement& s, std::vector<torch::Tensor> tensors);
  /// All values of the statement have the same bits unless one of the models that it depends on (bits) was rounded
  /// otherwise.
  void on_ranks(uint32_t models, const std::function<void(Rank&)>& run);
  double tolerance_of_all(uint32_t models) const;
  uint32_t models_of(const Statement& statement);
  void note_rounding(const Statement& s, double tolerance) {
    state(s).tolerance = std::max(state(s).tolerance, tolerance);
  }
  void note_rounding_of_step(const Statement& statement);
  bool skips_writes() const { return plant_ == Plant::kSkip && !is_sharded_; }

  const Program& program_;
  const Plant plant_;
  const bool is_sharded_;
  std::vector<std::unique_ptr<Rank>> ranks_;

 private:
  void run_list(const std::vector<Statement>& statements);
  void run_body(const Statement& statement) {
    within(statement, [&] { run_list(statement.body); });
  }
  void execute(const Statement& statement);
  void write_one_row(Rank& rank, const Statement& statement);
  void summon(Rank& rank, const Statement& statement);
  void save(Rank& rank, const Statement& statement);
  void compare_rows(Rank& rank, const Statement& statement);
  void compare_gradients(Rank& rank, const Statement& statement);

  std::array<ModelState, kModels> states_;
};

/// What a rank brings to mean().
inline double first_of(const torch::Tensor& numbers) { return numbers.flatten()[0].item<double>(); }
/// The row that a statement means, of a parameter of these whole sizes.
inline int64_t row_of(const Statement& s, at::IntArrayRef sizes) { return sizes.empty() ? 0 : s.seed % sizes[0]; }
/// Of numbers that are computed from the same ones in another order.
double tolerance_of(const Model& model);

}  // namespace fsdp::test::fuzz
