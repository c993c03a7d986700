// Tests of TorchScript modules, which run more often than the profiling executor needs to reach its optimised graphs.

#include <torch/script.h>

#include "zoo/zoo.h"

namespace fsdp::test {
namespace {

namespace jit = torch::jit;

void add_parameter(jit::Module& module, const std::string& name, Tensor value) {
  module.register_parameter(name, value.detach().requires_grad_(), /*is_buffer=*/false);
}

jit::Module make_block(int64_t dim) {
  jit::Module block("Block");
  add_parameter(block, "weight", torch::randn({2 * dim, dim}) * 0.3);
  add_parameter(block, "bias", torch::zeros({2 * dim}));
  add_parameter(block, "out", torch::randn({dim, 2 * dim}) * 0.3);
  block.define(R"(
    def forward(self, x):
      h = torch.tanh(torch.linear(x, self.weight, self.bias))
      return x + torch.relu(torch.linear(h, self.out)) * self.weight.size(1)
  )");
  return block;
}

// Returns a net of two blocks, one of which is used twice, and a head. Loops and branches stay in the graph.
std::shared_ptr<jit::Module> make_net() {
  auto net = std::make_shared<jit::Module>("Net");
  net->register_module("first", make_block(5));
  net->register_module("second", make_block(5));
  add_parameter(*net, "head", torch::randn({3, 5}) * 0.3);
  net->register_buffer("offset", torch::ones({3}));
  net->define(R"(
    def forward(self, x, repeats: int):
      for i in range(repeats):
        x = self.first.forward(x)
      if x.size(0) > 0:
        x = self.second.forward(x)
      return torch.matmul(x, self.head.t()) + self.offset
  )");
  return net;
}

// Calls the model; the sharded run calls it through its handle.
using ScriptCall = std::function<Tensor(std::vector<c10::IValue>)>;
void expect_same_script(bool blocks_are_groups,
                        const std::function<Values(jit::Module&, const Role&, ScriptCall)>& run) {
  Program<jit::Module> program;
  program.build = make_net;
  program.shard = [](jit::Module&, const FullyShardOptions&) {};
  program.run = [&](jit::Module& net, const Role& role) {
    if (!role.is_sharded())
      return run(net, role, [&](std::vector<c10::IValue> in) { return net.forward(std::move(in)).toTensor(); });
    if (blocks_are_groups)
      for (const auto* name : {"first", "second"}) {
        auto block = net.attr(name).toModule();
        fully_shard(block);
      }
    auto model = fully_shard(net);
    EXPECT_EQ(model.stats().groups, blocks_are_groups ? 3 : 1);
    EXPECT_EQ(model.parameters().size(), 7U);
    return run(net, role, [&](std::vector<c10::IValue> in) { return model(std::move(in)).toTensor(); });
  };
  expect_equals_unsharded(program, {3});
}

// There are enough steps to reach the optimised graphs of the groups, and evaluations without gradients.
TEST(ZooScript, OptimisedGraphsWithSubmodulesAsGroupsEqualTheUnshardedRun) {
  for (const bool blocks_are_groups : {true, false})
    expect_same_script(blocks_are_groups, [=](jit::Module& net, const Role& role, const ScriptCall& call) {
      const auto loss = [&](int step) {
        return distance_from_targets(call({samples(role.batch(step), {5}), 2}), role.batch(step));
      };
      const int steps = blocks_are_groups ? 8 : 2;
      auto values = descend(parameters_of(net), [&](int step) { return backward_of(loss(step)); }, steps);
      torch::NoGradGuard no_grad;
      for (int i = 0; i < 4; ++i) values.push_back(loss(i));
      return values;
    });
}

// Calls free functions of a compilation unit, and passes the parameters as arguments.
struct CallsScript : nn::Module {
  nn::Linear in = register_module("in", nn::Linear(4, 6)), out = register_module("out", nn::Linear(6, 3));
  std::shared_ptr<jit::CompilationUnit> functions = jit::compile(R"(
    def mix(x, weight, bias, out):
      both = torch.cat([weight, weight]).chunk(2)[1]
      h = torch.sigmoid(torch.linear(x, both, bias)) * weight.mean() * torch.max(weight, dim=1)[0]
      return torch.matmul(h, out.t()).cos().mul_(bias[None, 0:3])
  )");
  Tensor forward(const Tensor& x) {
    return functions->run_method("mix", x, in->weight, in->bias, out->weight).toTensor() + out->bias;
  }
};

TEST(ZooScript, CompiledFunctionsOnParametersEqualTheUnshardedRun) { expect_equals_unsharded(trained<CallsScript>()); }

}  // namespace
}  // namespace fsdp::test
