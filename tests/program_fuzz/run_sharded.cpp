#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "api/group_view.h"
#include "program_fuzz/exchange.h"
#include "program_fuzz/run.h"
#include "program_fuzz/stages.h"

namespace fsdp::test::fuzz {
namespace {

using torch::Tensor;

std::optional<Reshard> option_of(const Node& node) {
  if (node.reshard == WhenToReshard::kUnset) return std::nullopt;
  if (node.reshard == WhenToReshard::kWithin) return Reshard::within(node.neighbours);
  return node.reshard == WhenToReshard::kAlways ? Reshard::always() : Reshard::never();
}

using GroupsMade = std::vector<std::weak_ptr<runtime::ParamGroup>>;

class ShardedRun : public Run {
 public:
  ShardedRun(const Program& program, int number, const Watch& watch, Plant plant, Meshes& meshes,
             GroupsMade& groups_made)
      : Run(program, plant, /*is_sharded=*/true), watch_(watch), meshes_(meshes), groups_made_(groups_made) {
    ranks_.push_back(std::make_unique<Rank>(program, number));
    rank().pause = [this] {
      if (current_ != nullptr && current_->lag.inside) watch_.lags(current_->lag);
    };
    rank().apply = [this](const Statement& s, const Tensor& x, const Call& call) { return apply(s, x, call); };
  }

 private:
  struct Handle {
    std::optional<Sharded<std::shared_ptr<NodeModule>>> group;
    std::map<int, Group>
        by_node;  // keyed by node, one per fully_shard call; a group without parameters lives as long as its handle
    GradScaler scaler = GradScaler({.init_scale = 1024});
  };
  Rank& rank() { return *ranks_[0]; }
  Handle& handle(const Statement& s) { return item(handles_, s.model); }
  const Group& group(const Statement& s) { return *handle(s).group; }
  // Returns the group of a node.
  Group group_at(const Statement& s, int node) {
    const auto made = handle(s).by_node.find(node);
    return made != handle(s).by_node.end() ? made->second : group_of(*item(rank().net(s).modules, node));
  }
  const DeviceMesh& mesh_with(int shards) {
    if (!meshes_.contains(shards))
      meshes_.emplace(shards, init_device_mesh({world_size() / shards, shards}, {"replicate", "shard"}));
    return meshes_.at(shards);
  }

  void begin(const Statement& s) override {
    watch_.begins(s);
    if (!s.lag.inside) watch_.lags(s.lag);
    current_ = &s;
  }
  void within(const Statement& s, const std::function<void()>& body) override;
  void execute_otherwise(const Statement& s) override;
  void made(const Statement& s) override;
  std::vector<Tensor> exchanged(const Statement& s) override;
  void will_drop(const Statement& s) override {
    for (const auto& [node, stepper] : rank().of(s).steppers) group_at(s, node).set_post_accumulate_grad_hook({});
    handle(s) = {};
  }
  void shard(const Statement& s);
  Tensor apply(const Statement& s, const Tensor& x, const Call& call);
  void scaled_step(const Statement& s);
  void set_prefetch(const Statement& s);
  void throw_and_reset(const Statement& s);

  const Watch& watch_;
  Meshes& meshes_;
  GroupsMade& groups_made_;
  const Statement* current_ = nullptr;
  std::array<Handle, kModels> handles_;
};

void ShardedRun::within(const Statement& s, const std::function<void()>& body) {
  std::optional<ForwardScope> scope;
  std::optional<LocalRows> rows;
  std::optional<SummonFullParams> whole;
  const bool is_forward = s.kind == Kind::kForward || s.kind == Kind::kEvaluate;
  if (s.kind == Kind::kScope) scope.emplace(group_at(s, s.node));
  if (is_forward && s.entry == Entry::kScope && scope_of(s) >= 0) scope.emplace(group_at(s, s.at));
  if (s.kind == Kind::kLocalRows || (s.kind == Kind::kWriteRows && s.flag) ||
      (s.kind == Kind::kWriteOneRow && !state(s).has_local_rows))
    rows.emplace(group(s));
  if (s.kind == Kind::kSummon) whole.emplace(group(s));
  if (s.lag.inside) watch_.lags(s.lag);
  if (s.kind == Kind::kNoSync) {
    const auto guard = group(s).no_sync();
    return body();
  }
  body();
  if (s.kind == Kind::kScope && s.flag) scope->close();
  if (s.kind == Kind::kSummon && s.flag) whole->write_back();
}

void ShardedRun::execute_otherwise(const Statement& s) {
  const auto number = [](double value) { return torch::scalar_tensor(value, torch::kDouble); };
  switch (s.kind) {
    case Kind::kBackward:
      return run_backward(s);
    case Kind::kScaledStep:
      return scaled_step(s);
    case Kind::kUnshard: {
      auto pending = group_at(s, s.node).unshard();
      if (s.flag) pending.wait();
      return;
    }
    case Kind::kReshard:
      return group_at(s, s.node).reshard();
    case Kind::kKeepAfterForward:
      return group(s).set_reshard_after_forward(!s.flag);
    case Kind::kKeepAfterBackward:
      return group(s).set_reshard_after_backward(!s.flag);
    case Kind::kKeepInBackward:
      return group_at(s, s.node).set_unshard_in_backward(!s.flag);
    case Kind::kClampReduced:
      if (!s.flag) return group_at(s, s.node).set_all_reduce_hook({});
      return group_at(s, s.node).set_all_reduce_hook(
          [most = s.value](const Tensor& rows) { Tensor(rows).clamp_(-most, most); });
    case Kind::kStepInBackward:
      if (!s.flag) return group_at(s, s.node).set_post_accumulate_grad_hook({});
      return group_at(s, s.node).set_post_accumulate_grad_hook(
          [stepper = rank().of(s).steppers.at(s.node).get()](const std::vector<Tensor>&) {
            stepper->step();
            stepper->zero_grad();
          });
    case Kind::kReduceUnused:
      return group(s).set_reduce_scatter_unused_params(s.flag);
    case Kind::kDivideFactor:
      return group_at(s, s.node).set_gradient_divide_factor(s.value);
    case Kind::kForwardPrefetch:
    case Kind::kBackwardPrefetch:
      return set_prefetch(s);
    case Kind::kClip:
      return rank().record(s, number(clip_grad_norm_(group(s), s.value)));
    case Kind::kThrow:
      return throw_and_reset(s);
    case Kind::kBarrier:
      return barrier();
    case Kind::kAllReduce:
      return rank().record(s, all_reduce(rank().input(s), s.flag ? ReduceOp::kMax : ReduceOp::kSum));
    case Kind::kAllGather:
      return rank().record(s, all_gather(rank().input(s)));
    case Kind::kBroadcast:
      return rank().record(s, broadcast(rank().input(s), s.rank));
    case Kind::kMean:
      return rank().record(s, number(mean(first_of(rank().input(s)))));
    case Kind::kPipeline:
      for (const auto& result :
           trained_as_stages(program_, s, mesh_with(program_.world_size / ranks_of_axis(program_, s))))
        rank().record(s, result);
      return;
    default:
      throw std::logic_error(c10::str("a sharded run cannot execute ", info_of(s.kind).name));
  }
}

void ShardedRun::made(const Statement& s) {
  if (program_.model(s).is_synced) rank().net(s).begin_apart(rank().number);
  shard(s);
  for (const auto& group : param_groups(group(s))) groups_made_.push_back(group);
}

std::vector<Tensor> ShardedRun::exchanged(const Statement& s) {
  const auto axis = mesh_with(ranks_of_axis(program_, s)).process_group("shard");
  const Exchange exchange{.ranks = axis->world_size(), .rank = axis->rank(), .statement = s};
  const auto given = exchange.given(rank().graph(s.other).h);
  if (s.kind == Kind::kMap) {
    const std::array<Tensor (*)(const Tensor&, const std::shared_ptr<ProcessGroup>&), kMaps> maps{
        [](const Tensor& x, const auto& ranks) { return functional::all_reduce(x, ranks); },
        [](const Tensor& x, const auto& ranks) { return functional::all_gather(x, 0, ranks); },
        [](const Tensor& x, const auto& ranks) { return functional::reduce_scatter(x, 0, ranks); },
        [](const Tensor& x, const auto& ranks) { return functional::all_to_all(x, 0, 0, ranks); },
        [](const Tensor& x, const auto& ranks) { return functional::shift(x, 1, ranks); }};
    return {exchange.taken(item(maps, s.seed % kMaps)(given, axis))};
  }
  const SequenceParallel sequence(axis, static_cast<SequenceMethod>(s.seed % kMethods));
  return {exchange.taken(
      torch::scaled_dot_product_attention(given, 0.9 * given, given + 1, {}, 0.0, /*is_causal=*/s.flag))};
}

void ShardedRun::shard(const Statement& s) {
  auto& net = rank().net(s);
  const auto& model = program_.model(s);
  FullyShardOptions options{.ignored_params = net.ignored_below(0), .sync_module_states = model.is_synced};
  if (model.is_mixed)
    options.mp_policy = MixedPrecisionPolicy{
        .param_dtype = torch::kFloat, .reduce_dtype = torch::kDouble, .cast_forward_inputs = false};
  const auto choose = [&](const Node& node) {
    options.disk_policy.reset();
    if (&node - model.nodes.data() < model.in_files)
      options.disk_policy = DiskOffloadPolicy{std::filesystem::temp_directory_path()};
    options.strategy = node.strategy;
    options.mesh = node.shards == 0 ? std::nullopt : std::optional(mesh_with(node.shards));
    options.reshard_after_forward = option_of(node);
  };
  if (model.by_policy) {
    choose(model.nodes[0]);
    options.auto_wrap_policy = [&](const WrapCandidate& candidate) {
      for (size_t node = 1; node < net.modules.size(); ++node)
        if (net.modules[node].get() == &candidate.module && model.nodes[node].is_group) return true;
      return false;
    };
    handle(s).group = fully_shard(net.modules[0], options);
    return;
  }
  for (int node : net.group_nodes) {
    options.ignored_params = net.ignored_below(node);
    choose(item(model.nodes, node));
    handle(s).group = fully_shard(item(net.modules, node), options);
    handle(s).by_node.emplace(node, *handle(s).group);
  }
}

Tensor ShardedRun::apply(const Statement& s, const Tensor& x, const Call& call) {
  auto& module = rank().module(s);
  if (s.entry == Entry::kScope) return module.forward(x, call);
  if (s.node != 0 || s.entry == Entry::kHandleOf) return handle_of(module)(x, call);
  auto& model = *handle(s).group;
  return s.entry == Entry::kCall ? model(x, call) : model.forward(x, call);
}

void ShardedRun::scaled_step(const Statement& s) {
  const torch::NoGradGuard no_grad;
  if (!rank().has_gradients(s)) return;
  auto& scaler = handle(s).scaler;
  auto& optimizer = *rank().of(s).optimizer;
  static_cast<void>(scaler.scale(torch::ones({})));
  for (auto& tensor : rank().net(s).tensors())
    if (tensor.grad().defined()) tensor.mutable_grad().mul_(scaler.get_scale());
  if (s.flag) {
    auto tensor = rank().row_parameter(s);
    const auto held = local_rows(tensor);
    const int64_t row = row_of(s, global_sizes(tensor)) - held.first;
    if (tensor.grad().defined() && row >= 0 && row < held.count) tensor.mutable_grad().fill_(INFINITY);
  }
  scaler.step(optimizer);
  scaler.update();
  optimizer.zero_grad();
}

void ShardedRun::set_prefetch(const Statement& s) {
  std::vector<Group> others;
  for (int node : s.nodes) others.push_back(group_at(s, node));
  s.kind == Kind::kForwardPrefetch ? group_at(s, s.node).set_modules_to_forward_prefetch(others)
                                   : group_at(s, s.node).set_modules_to_backward_prefetch(others);
}

// A rank that does not throw gets a Mismatch, unless it needs nothing more from a rank that throws. If all ranks throw
// inside the model, a rank may learn of another rank's error before it throws itself.
void ShardedRun::throw_and_reset(const Statement& s) {
  rank().graphs = {};
  const bool throws = s.rank < 0 || s.rank == rank().number;
  try {
    Tensor loss;
    {
      const ForwardScope scope(group(s));
      if (s.lag.inside) watch_.lags(s.lag);
      loss = rank().loss_that_throws(s, throws);
    }
    loss.backward();
  } catch (const Planned&) {
  } catch (const Mismatch&) {
    if (throws && (s.rank >= 0 || s.node == 0)) throw;
  }
  group(s).reset_iter_state();
  // The reset drops gradients if a rank was in backward, and that depends on timing. zero_grad() drops them in any
  // case.
  rank().of(s).optimizer->zero_grad();
}

}  // namespace

std::vector<Value> run_sharded(const Program& program, int rank, const Watch& watch, Plant plant, Meshes& meshes) {
  GroupsMade groups;
  auto values = ShardedRun(program, rank, watch, plant, meshes, groups).run();
  // Groups are destroyed with their parameters, and parameters with the module, the optimizer and the graphs. After an
  // exception in a backward, a queue of LibTorch may keep its graph until this thread runs another backward.
  const auto order = in_order(program);
  const bool threw = std::ranges::any_of(order, [](const auto* statement) { return statement->kind == Kind::kThrow; });
  for (const auto& group : groups)
    if (!threw && !group.expired())
      throw Error("a group still exists although its model, its optimizer and all graphs are gone");
  return values;
}

}  // namespace fsdp::test::fuzz
