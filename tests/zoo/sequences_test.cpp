// Recurrent networks, attention and transformers of LibTorch, sharded as they are.

#include "support/oracle.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

template <class Impl, class Forward>
Program<Impl> fit(std::function<std::shared_ptr<Impl>()> build, Forward forward) {
  return regression<Impl>(std::move(build), forward);
}

TEST(ZooSequences, BidirectionalLstmOfTwoLayersEqualsTheUnshardedRun) {
  auto program = fit<nn::LSTMImpl>(
      [] {
        return std::make_shared<nn::LSTMImpl>(
            nn::LSTMOptions(3, 5).num_layers(2).bidirectional(true).batch_first(true));
      },
      [](nn::LSTMImpl& m, const Batch& batch) { return std::get<0>(m.forward(samples(batch, {6, 3}))); });
  expect_equals_unsharded(program);
  expect_equals_unsharded(program, worlds_up_to(8));
}

TEST(ZooSequences, LstmWithGivenStatesAndProjectionEqualsTheUnshardedRun) {
  auto program = fit<nn::LSTMImpl>(
      [] { return std::make_shared<nn::LSTMImpl>(nn::LSTMOptions(3, 5).proj_size(2).batch_first(true)); },
      [](nn::LSTMImpl& m, const Batch& batch) {
        auto hidden = samples(batch, {2}).unsqueeze(0), cell = samples(batch, {5}).unsqueeze(0);
        auto [output, states] = m.forward(samples(batch, {4, 3}), std::make_tuple(hidden, cell));
        return torch::cat({output.flatten(1), std::get<1>(states).squeeze(0)}, 1);
      });
  expect_equals_unsharded(program);
}

TEST(ZooSequences, BidirectionalGruOfTwoLayersEqualsTheUnshardedRun) {
  expect_equals_unsharded(fit<nn::GRUImpl>(
      [] {
        return std::make_shared<nn::GRUImpl>(nn::GRUOptions(3, 5).num_layers(2).bidirectional(true).batch_first(true));
      },
      [](nn::GRUImpl& m, const Batch& batch) { return std::get<0>(m.forward(samples(batch, {6, 3}))); }));
}

TEST(ZooSequences, RnnAndGruCellInALoopEqualTheUnshardedRun) {
  expect_equals_unsharded(
      fit<nn::RNNImpl>(
          [] { return std::make_shared<nn::RNNImpl>(nn::RNNOptions(3, 5).batch_first(true)); },
          [](nn::RNNImpl& m, const Batch& batch) { return std::get<0>(m.forward(samples(batch, {6, 3}))); }),
      {2});
  expect_equals_unsharded(
      fit<nn::GRUCellImpl>([] { return std::make_shared<nn::GRUCellImpl>(nn::GRUCellOptions(3, 5)); },
                           [](nn::GRUCellImpl& m, const Batch& batch) {
                             torch::Tensor state = torch::zeros({batch.count, 5}, torch::kDouble);
                             for (const auto& x : samples(batch, {4, 3}).unbind(1)) state = m.forward(x, state);
                             return state;
                           }),
      worlds_up_to(3));
}

TEST(ZooSequences, MultiheadSelfAttentionEqualsTheUnshardedRun) {
  expect_equals_unsharded(fit<nn::MultiheadAttentionImpl>(
      [] { return std::make_shared<nn::MultiheadAttentionImpl>(nn::MultiheadAttentionOptions(6, 2)); },
      [](nn::MultiheadAttentionImpl& m, const Batch& batch) {
        auto x = samples(batch, {4, 6}).transpose(0, 1);
        return std::get<0>(m.forward(x, x, x)).transpose(0, 1);
      }));
}

TEST(ZooSequences, MultiheadAttentionWithOwnKeyAndValueSizesEqualsTheUnshardedRun) {
  expect_equals_unsharded(fit<nn::MultiheadAttentionImpl>(
      [] {
        return std::make_shared<nn::MultiheadAttentionImpl>(
            nn::MultiheadAttentionOptions(6, 2).kdim(3).vdim(3).add_bias_kv(true));
      },
      [](nn::MultiheadAttentionImpl& m, const Batch& batch) {
        auto query = samples(batch, {4, 6}), key = samples(batch, {5, 3}), value = key + 1.0;
        auto output = m.forward(query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1));
        return std::get<0>(output).transpose(0, 1);
      }));
}

Program<nn::TransformerEncoderImpl> encoder_program() {
  auto program = fit<nn::TransformerEncoderImpl>(
      [] {
        auto layer =
            nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(6, 2).dim_feedforward(9).dropout(0.0));
        return nn::TransformerEncoder(nn::TransformerEncoderOptions(layer, 3)).ptr();
      },
      [](nn::TransformerEncoderImpl& m, const Batch& batch) {
        return m.forward(samples(batch, {4, 6}).transpose(0, 1)).transpose(0, 1);
      });
  program.shard = [](nn::TransformerEncoderImpl& m, const FullyShardOptions& options) {
    for (auto& layer : *m.layers) fully_shard(*layer, options);
    fully_shard(static_cast<nn::Module&>(m), options);
  };
  return program;
}

TEST(ZooSequences, TransformerEncoderWithAGroupPerLayerEqualsTheUnshardedRun) {
  expect_equals_unsharded(encoder_program());
}

TEST(ZooSequences, TransformerEncoderAsOneGroupEqualsTheUnshardedRun) {
  auto program = encoder_program();
  program.shard = shard_as_one_group;
  expect_equals_unsharded(program, worlds_up_to(3));
}

TEST(ZooSequences, TransformerWithMasksEqualsTheUnshardedRun) {
  auto program = fit<nn::TransformerImpl>(
      [] {
        return std::make_shared<nn::TransformerImpl>(
            nn::TransformerOptions(6, 2).num_encoder_layers(1).num_decoder_layers(2).dim_feedforward(7).dropout(0.0));
      },
      [](nn::TransformerImpl& m, const Batch& batch) {
        auto source = samples(batch, {4, 6}).transpose(0, 1), target = samples(batch, {3, 6}).transpose(0, 1);
        auto mask = nn::TransformerImpl::generate_square_subsequent_mask(3).to(torch::kDouble);
        return m.forward(source, target, /*src_mask=*/{}, mask).transpose(0, 1);
      });
  expect_equals_unsharded(program);
}

}  // namespace
}  // namespace fsdp::test
