// Tests of LibTorch's own modules, sharded unchanged: layers, recurrent networks, attention, transformers, containers.

#include "zoo/zoo.h"

namespace fsdp::test {
namespace {

Tensor output_of(Tensor output) { return output; }
template <class... Others>
Tensor output_of(std::tuple<Tensor, Others...> outputs) {
  return std::get<0>(outputs);
}

template <class Impl>
using Forward = std::function<Tensor(Impl& m, const Batch& batch)>;

// Returns a program that makes the module with `build` and fits the output of `forward` to targets.
template <class Impl>
AnyProgram fitted(std::function<std::shared_ptr<Impl>()> build, Forward<Impl> forward,
                  Shard shard = shard_children_then_root) {
  auto program = program_of<Impl>(
      fitting<Impl>([=](Impl& m, const Batch& batch) { return distance_from_targets(forward(m, batch), batch); },
                    /*steps=*/2),
      std::move(shard));
  program.build = build;
  program.largest_world = 8;
  return program;
}

// Returns a program of the module made from `args`, which `forward` calls.
template <class Impl, class Args>
AnyProgram called(Args args, Forward<Impl> forward) {
  return fitted<Impl>([=] { return std::make_shared<Impl>(args); }, std::move(forward));
}

// Returns a program of the module made from `args`, with inputs that have `sizes` per sample.
template <class Impl, class Args>
AnyProgram of_inputs(std::vector<int64_t> sizes, Args args) {
  return called<Impl>(args, [=](Impl& m, const Batch& batch) {
    const auto dtype = m.parameters()[0].scalar_type();
    return output_of(m.forward(samples(batch, sizes, dtype)));
  });
}

// Returns samples whose dim 0 is time, which LibTorch's attention expects.
Tensor in_time(const Batch& batch, std::vector<int64_t> sizes) {
  return samples(batch, std::move(sizes)).transpose(0, 1);
}

AnyProgram convolution_in_float32() {
  auto program = of_inputs<nn::Conv2dImpl>({3, 6, 6}, nn::Conv2dOptions(3, 5, 3).padding(1));
  program.dtype = torch::kFloat;
  program.tolerance = 5e-6;
  return program;
}

AnyProgram sequence_of_layers() {
  const auto build = [] {
    return nn::Sequential(nn::Linear(5, 9), nn::Tanh(), nn::LayerNorm(nn::LayerNormOptions({9})), nn::Linear(9, 4),
                          nn::Softplus(), nn::Linear(4, 3))
        .ptr();
  };
  return fitted<nn::SequentialImpl>(
      build, [](nn::SequentialImpl& m, const Batch& batch) { return m.forward(samples(batch, {5})); });
}

Tensor bilinear(nn::BilinearImpl& m, const Batch& batch) { return m.forward(samples(batch, {3}), samples(batch, {4})); }

Tensor cell_in_a_loop(nn::GRUCellImpl& m, const Batch& batch) {
  auto state = torch::zeros({batch.count, 5}, torch::kDouble);
  for (const auto& x : samples(batch, {4, 3}).unbind(1)) state = m.forward(x, state);
  return state;
}

Tensor attention_to_others(nn::MultiheadAttentionImpl& m, const Batch& batch) {
  auto key = in_time(batch, {5, 3});
  return std::get<0>(m.forward(in_time(batch, {4, 6}), key, key + 1.0)).transpose(0, 1);
}

void shard_layers(nn::Module& model, const FullyShardOptions& options) {
  for (auto& layer : *dynamic_cast<nn::TransformerEncoderImpl&>(model).layers) fully_shard(*layer, options);
  fully_shard(model, options);
}

AnyProgram encoder_with_a_group_per_layer() {
  const auto build = [] {
    auto layer = nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(6, 2).dim_feedforward(9).dropout(0.0));
    return nn::TransformerEncoder(nn::TransformerEncoderOptions(layer, 3)).ptr();
  };
  const auto forward = [](nn::TransformerEncoderImpl& m, const Batch& batch) {
    return m.forward(in_time(batch, {4, 6})).transpose(0, 1);
  };
  return fitted<nn::TransformerEncoderImpl>(build, forward, shard_layers);
}

Tensor masked_transformer(nn::TransformerImpl& m, const Batch& batch) {
  auto mask = nn::TransformerImpl::generate_square_subsequent_mask(3).to(torch::kDouble);
  return m.forward(in_time(batch, {4, 6}), in_time(batch, {3, 6}), /*src_mask=*/{}, mask).transpose(0, 1);
}

// Holds modules in lists and dictionaries, and parameters in lists and dictionaries.
struct Containers : nn::Module {
  nn::ModuleList list = register_module("list", nn::ModuleList(nn::Linear(4, 6), nn::Linear(6, 6)));
  nn::ModuleDict dict = register_module("dict", nn::ModuleDict());
  nn::ParameterList scales = register_module("scales", nn::ParameterList());
  nn::ParameterDict shifts = register_module("shifts", nn::ParameterDict());
  Containers() {
    dict->update({{"head", nn::Linear(6, 3).ptr()}, {"gate", nn::Linear(6, 3).ptr()}});
    for (int64_t i = 0; i < 2; ++i) scales->append(torch::ones({6}) + static_cast<double>(i));
    shifts->insert("in", torch::zeros({6}));
    shifts->insert("out", torch::ones({3}));
  }
  Tensor forward(Tensor x) {
    for (size_t i = 0; i < 2; ++i) x = torch::tanh(list[i]->as<nn::Linear>()->forward(x)) * scales[i] + shifts["in"];
    return dict["head"]->as<nn::Linear>()->forward(x) * torch::sigmoid(dict["gate"]->as<nn::Linear>()->forward(x)) +
           shifts["out"];
  }
};

void shard_contents(nn::Module& module, const FullyShardOptions& options) {
  auto& m = dynamic_cast<Containers&>(module);
  for (auto& linear : *m.list) fully_shard(*linear, options);
  fully_shard(*m.dict["head"], options);
  fully_shard(*m.scales, options);
  fully_shard(module, options);
}

class ZooModules : public ZooTable {};

TEST_P(ZooModules, EqualTheUnshardedRun) { expect_same(); }

INSTANTIATE_TEST_SUITE_P(
    Layers, ZooModules,
    testing::Values(
        ZooCase{"LinearWithoutBias", of_inputs<nn::LinearImpl>({3, 5}, nn::LinearOptions(5, 7).bias(false))},
        ZooCase{"Bilinear", called<nn::BilinearImpl>(nn::BilinearOptions(3, 4, 5), bilinear)},
        ZooCase{"Conv1d", of_inputs<nn::Conv1dImpl>({4, 9}, nn::Conv1dOptions(4, 6, 3).stride(2).padding(1).groups(2))},
        ZooCase{"Conv2dInFloat32", convolution_in_float32()},
        ZooCase{"ConvTranspose2d",
                of_inputs<nn::ConvTranspose2dImpl>({3, 4, 4}, nn::ConvTranspose2dOptions(3, 5, 3).stride(2))},
        ZooCase{"LayerNorm", of_inputs<nn::LayerNormImpl>({3, 5}, nn::LayerNormOptions({3, 5}))},
        ZooCase{"GroupNorm", of_inputs<nn::GroupNormImpl>({6, 4}, nn::GroupNormOptions(3, 6))},
        ZooCase{"PRelu", of_inputs<nn::PReLUImpl>({3, 5}, nn::PReLUOptions().num_parameters(3))},
        ZooCase{"SequentialWithAGroupPerChild", sequence_of_layers()},
        ZooCase{"ContainersWithGroupsInside", trained<Containers>(shard_contents)}),
    name_of_case);

INSTANTIATE_TEST_SUITE_P(
    Sequences, ZooModules,
    testing::Values(
        ZooCase{
            "BidirectionalLstmOfTwoLayers",
            of_inputs<nn::LSTMImpl>({6, 3}, nn::LSTMOptions(3, 5).num_layers(2).bidirectional(true).batch_first(true))},
        ZooCase{
            "BidirectionalGruOfTwoLayers",
            of_inputs<nn::GRUImpl>({6, 3}, nn::GRUOptions(3, 5).num_layers(2).bidirectional(true).batch_first(true))},
        ZooCase{"Rnn", of_inputs<nn::RNNImpl>({6, 3}, nn::RNNOptions(3, 5).batch_first(true))},
        ZooCase{"GruCellInALoop", called<nn::GRUCellImpl>(nn::GRUCellOptions(3, 5), cell_in_a_loop)},
        ZooCase{
            "AttentionWithKeysOfTheirOwnSize",
            called<nn::MultiheadAttentionImpl>(nn::MultiheadAttentionOptions(6, 2).kdim(3).vdim(3).add_bias_kv(true),
                                               attention_to_others)},
        ZooCase{"TransformerEncoderWithAGroupPerLayer", encoder_with_a_group_per_layer()},
        ZooCase{"TransformerWithMasks",
                called<nn::TransformerImpl>(
                    nn::TransformerOptions(6, 2).num_encoder_layers(1).num_decoder_layers(2).dim_feedforward(7).dropout(
                        0.0),
                    masked_transformer)}),
    name_of_case);

// Weights and inputs of two convolutions have the memory format channels_last.
TEST(ZooLayouts, ChannelsLastWeightsAndInputsEqualTheUnshardedRun) {
  constexpr auto kLast = torch::MemoryFormat::ChannelsLast;
  const auto build = [] {
    nn::Sequential model(nn::Conv2d(nn::Conv2dOptions(4, 6, 3).padding(1)), nn::ReLU(), nn::Conv2d(6, 5, 3));
    for (auto& parameter : model->parameters())
      if (parameter.dim() == 4) parameter.set_data(parameter.detach().contiguous(kLast));
    return model.ptr();
  };
  auto program = fitted<nn::SequentialImpl>(build, [](nn::SequentialImpl& m, const Batch& batch) {
    return m.forward(samples(batch, {4, 6, 6}).contiguous(kLast));
  });
  program.run = [run = program.run](nn::Module& model, const Role& role) {
    auto losses = run(model, role);
    for (const auto& parameter : model.parameters())
      if (parameter.dim() == 4) {
        auto whole = role.is_sharded() ? full_tensor(parameter) : parameter;
        EXPECT_TRUE(whole.is_contiguous(kLast));
      }
    return losses;
  };
  expect_equals_unsharded(program);
}

}  // namespace
}  // namespace fsdp::test
