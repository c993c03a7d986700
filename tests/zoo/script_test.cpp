// TorchScript modules, for more runs than the profiling executor needs to reach its optimised graphs.

#include <torch/script.h>

#include "support/oracle.h"

namespace fsdp::test {
namespace {

namespace jit = torch::jit;

void add_parameter(jit::Module& module, const std::string& name, torch::Tensor value) {
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

// Two blocks, one of them used twice, and a head; loops and branches stay in the graph.
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

template <class Call>
Values train_script(jit::Module& net, const Role& role, int steps, const Call& call) {
  torch::optim::SGD optimizer(parameters_of(net), torch::optim::SGDOptions(0.02).momentum(0.9));
  Values losses;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    auto batch = role.batch(step);
    auto loss = distance_from_targets(call({samples(batch, {5}), 2}), batch);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.detach());
  }
  return losses;
}

// Shards inside `run`, where the handle is used.
Program<jit::Module> script_program(bool blocks_are_groups, int steps) {
  Program<jit::Module> program;
  program.build = make_net;
  program.shard = [](jit::Module&, const FullyShardOptions&) {};
  program.run = [=](jit::Module& net, const Role& role) {
    if (!role.is_sharded())
      return train_script(net, role, steps,
                          [&](std::vector<c10::IValue> in) { return net.forward(std::move(in)).toTensor(); });
    if (blocks_are_groups)
      for (const auto* name : {"first", "second"}) {
        auto block = net.attr(name).toModule();
        fully_shard(block);
      }
    auto model = fully_shard(net);
    EXPECT_EQ(model.stats().groups, blocks_are_groups ? 3 : 1);
    auto losses =
        train_script(net, role, steps, [&](std::vector<c10::IValue> in) { return model(std::move(in)).toTensor(); });
    EXPECT_EQ(model.parameters().size(), 7U);
    return losses;
  };
  return program;
}

TEST(ZooScript, ModuleAsOneGroupEqualsTheUnshardedRun) {
  expect_equals_unsharded(script_program(false, 4), worlds_up_to(4));
}

TEST(ZooScript, SubmodulesAsGroupsEqualTheUnshardedRun) {
  expect_equals_unsharded(script_program(true, 4), worlds_up_to(4));
}

TEST(ZooScript, OptimisedGraphsEqualTheUnshardedRun) {
  expect_equals_unsharded(script_program(true, 10), worlds_up_to(3));
}

// Free functions of a compilation unit that take the parameters as arguments.
struct CallsScript : torch::nn::Module {
  torch::nn::Linear in{5, 6}, out{6, 3};
  std::shared_ptr<jit::CompilationUnit> functions = jit::compile(R"(
    def mix(x, weight, bias, out):
      both = torch.cat([weight, weight]).chunk(2)[1]
      h = torch.sigmoid(torch.linear(x, both, bias)) * weight.mean() * torch.max(weight, dim=1)[0]
      return torch.matmul(h, out.t()).cos().mul_(bias[None, 0:3])
  )");
  CallsScript() {
    register_module("in", in);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return functions->run_method("mix", x, in->weight, in->bias, out->weight).toTensor() + out->bias;
  }
};

TEST(ZooScript, CompiledFunctionsOnParametersEqualTheUnshardedRun) {
  auto program =
      regression<CallsScript>([] { return std::make_shared<CallsScript>(); },
                              [](CallsScript& m, const Batch& batch) { return m.forward(samples(batch, {5})); });
  expect_equals_unsharded(program);
}

TEST(ZooScript, EvaluationWithoutGradEqualsTheUnshardedModels) {
  Program<jit::Module> program;
  program.build = make_net;
  program.shard = [](jit::Module&, const FullyShardOptions&) {};
  program.run = [](jit::Module& net, const Role& role) {
    torch::NoGradGuard no_grad;
    std::optional<Sharded<jit::Module>> model;
    if (role.is_sharded()) model.emplace(fully_shard(net));
    Values losses;
    for (int i = 0; i < 4; ++i) {
      std::vector<c10::IValue> in{samples(role.batch(i), {5}), 1};
      auto output = model ? (*model)(in).toTensor() : net.forward(in).toTensor();
      losses.push_back(distance_from_targets(output, role.batch(i)));
    }
    return losses;
  };
  expect_equals_unsharded(program, worlds_up_to(3));
}

}  // namespace
}  // namespace fsdp::test
