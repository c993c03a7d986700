// LibTorch's own feed-forward modules, sharded as they are.

#include "support/oracle.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

// A built-in module as the only group, fitted on inputs of `sizes` per sample.
template <class Impl, class... Args>
Program<Impl> fit(std::vector<int64_t> sizes, Args... args) {
  return regression<Impl>([=] { return std::make_shared<Impl>(args...); },
                          [=](Impl& m, const Batch& batch) { return m.forward(samples(batch, sizes)); });
}

TEST(ZooLayers, LinearEqualsTheUnshardedRun) {
  auto program = fit<nn::LinearImpl>({5}, nn::LinearOptions(5, 7));
  expect_equals_unsharded(program);
  expect_equals_unsharded(program, worlds_up_to(8));
}

TEST(ZooLayers, LinearWithoutBiasOnThreeDimensionsEqualsTheUnshardedRun) {
  expect_equals_unsharded(fit<nn::LinearImpl>({3, 5}, nn::LinearOptions(5, 7).bias(false)));
}

TEST(ZooLayers, BilinearEqualsTheUnshardedRun) {
  expect_equals_unsharded(regression<nn::BilinearImpl>(
      [] { return std::make_shared<nn::BilinearImpl>(nn::BilinearOptions(3, 4, 5)); },
      [](nn::BilinearImpl& m, const Batch& batch) { return m.forward(samples(batch, {3}), samples(batch, {4})); }));
}

TEST(ZooLayers, Conv1dEqualsTheUnshardedRun) {
  expect_equals_unsharded(fit<nn::Conv1dImpl>({4, 9}, nn::Conv1dOptions(4, 6, 3).stride(2).padding(1).groups(2)));
}

TEST(ZooLayers, Conv2dEqualsTheUnshardedRun) {
  expect_equals_unsharded(fit<nn::Conv2dImpl>({3, 6, 6}, nn::Conv2dOptions(3, 5, 3).padding(1)));
}

TEST(ZooLayers, Conv2dInFloat32StaysWithinItsRounding) {
  auto program = fit<nn::Conv2dImpl>({3, 6, 6}, nn::Conv2dOptions(3, 5, 3).padding(1));
  program.run = [](nn::Conv2dImpl& model, const Role& role) {
    return train(model, role, [](nn::Conv2dImpl& m, const Batch& batch) {
      return distance_from_targets(m.forward(samples(batch, {3, 6, 6}, torch::kFloat)), batch);
    });
  };
  program.dtype = torch::kFloat;
  program.tolerance = 5e-6;
  expect_equals_unsharded(program);
}

TEST(ZooLayers, ConvTransposeEqualsTheUnshardedRun) {
  expect_equals_unsharded(fit<nn::ConvTranspose2dImpl>({3, 4, 4}, nn::ConvTranspose2dOptions(3, 5, 3).stride(2)));
  expect_equals_unsharded(fit<nn::ConvTranspose1dImpl>({3, 4}, nn::ConvTranspose1dOptions(3, 5, 2)), {2});
}

// Weights and inputs in channels_last, through two convolutions.
TEST(ZooLayers, ChannelsLastWeightsAndInputsEqualTheUnshardedRun) {
  auto build = [] {
    nn::Sequential model(nn::Conv2d(nn::Conv2dOptions(4, 6, 3).padding(1)), nn::ReLU(), nn::Conv2d(6, 5, 3));
    for (auto& parameter : model->parameters())
      if (parameter.dim() == 4) parameter.set_data(parameter.detach().contiguous(torch::MemoryFormat::ChannelsLast));
    return model.ptr();
  };
  auto program = regression<nn::SequentialImpl>(build, [](nn::SequentialImpl& m, const Batch& batch) {
    return m.forward(samples(batch, {4, 6, 6}).contiguous(torch::MemoryFormat::ChannelsLast));
  });
  auto run = program.run;
  program.run = [run](nn::SequentialImpl& model, const Role& role) {
    auto losses = run(model, role);
    for (const auto& parameter : model.parameters())
      if (parameter.dim() == 4) {
        auto whole = role.is_sharded() ? full_tensor(parameter) : parameter;
        EXPECT_TRUE(whole.is_contiguous(torch::MemoryFormat::ChannelsLast));
      }
    return losses;
  };
  expect_equals_unsharded(program);
}

TEST(ZooLayers, LayerNormAndGroupNormEqualTheUnshardedRun) {
  expect_equals_unsharded(fit<nn::LayerNormImpl>({3, 5}, nn::LayerNormOptions({3, 5})));
  expect_equals_unsharded(fit<nn::GroupNormImpl>({6, 4}, nn::GroupNormOptions(3, 6)));
}

TEST(ZooLayers, PReluEqualsTheUnshardedRun) {
  expect_equals_unsharded(fit<nn::PReLUImpl>({3, 5}, nn::PReLUOptions().num_parameters(3)), worlds_up_to(3));
}

TEST(ZooLayers, SequentialWithAGroupPerChildEqualsTheUnshardedRun) {
  auto program = regression<nn::SequentialImpl>(
      [] {
        return nn::Sequential(nn::Linear(5, 9), nn::Tanh(), nn::LayerNorm(nn::LayerNormOptions({9})), nn::Linear(9, 4),
                              nn::Softplus(), nn::Linear(4, 3))
            .ptr();
      },
      [](nn::SequentialImpl& m, const Batch& batch) { return m.forward(samples(batch, {5})); });
  expect_equals_unsharded(program);
  program.shard = shard_as_one_group;
  expect_equals_unsharded(program, worlds_up_to(3));
}

// Modules in lists and dictionaries, and parameters in lists and dictionaries.
struct Containers : nn::Module {
  nn::ModuleList list;
  nn::ModuleDict dict;
  nn::ParameterList scales;
  nn::ParameterDict shifts;
  Containers() : list(nn::Linear(4, 6), nn::Linear(6, 6)) {
    register_module("list", list);
    dict->update({{"head", nn::Linear(6, 3).ptr()}, {"gate", nn::Linear(6, 3).ptr()}});
    register_module("dict", dict);
    for (int64_t i = 0; i < 2; ++i) scales->append(torch::ones({6}) + static_cast<double>(i));
    register_module("scales", scales);
    shifts->insert("in", torch::zeros({6}));
    shifts->insert("out", torch::ones({3}));
    register_module("shifts", shifts);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (size_t i = 0; i < 2; ++i) x = torch::tanh(list[i]->as<nn::Linear>()->forward(x)) * scales[i] + shifts["in"];
    return dict["head"]->as<nn::Linear>()->forward(x) * torch::sigmoid(dict["gate"]->as<nn::Linear>()->forward(x)) +
           shifts["out"];
  }
};

TEST(ZooLayers, ContainersOfModulesAndParametersEqualTheUnshardedRun) {
  auto program =
      regression<Containers>([] { return std::make_shared<Containers>(); },
                             [](Containers& m, const Batch& batch) { return m.forward(samples(batch, {4})); });
  expect_equals_unsharded(program);
  program.shard = [](Containers& m, const FullyShardOptions& options) {
    for (auto& linear : *m.list) fully_shard(*linear, options);
    fully_shard(*m.dict["head"], options);
    fully_shard(*m.scales, options);
    fully_shard(static_cast<nn::Module&>(m), options);
  };
  expect_equals_unsharded(program, worlds_up_to(3));
}

}  // namespace
}  // namespace fsdp::test
