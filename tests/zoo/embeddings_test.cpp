// Embeddings, tied weights, and parameters used in other places and more often than once.

#include <gmock/gmock.h>

#include "support/oracle.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

constexpr int64_t kWords = 13;

template <class Impl>
Values train_on_words(Impl& model, const Role& role) {
  auto optimizer = torch::optim::SGD(model.parameters(), 0.1);  // plain: momentum refuses sparse gradients unsharded
  Values losses;
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    auto batch = role.batch(step);
    auto loss =
        role.whole(model, [&] { return distance_from_targets(model.forward(labels(batch, {3}, kWords)), batch); });
    loss.backward();
    optimizer.step();
    losses.push_back(loss.detach());
  }
  return losses;
}

template <class Impl, class... Args>
Program<Impl> word_program(Args... args) {
  Program<Impl> program;
  program.build = [=] { return std::make_shared<Impl>(args...); };
  program.shard = shard_children_then_root;
  program.run = train_on_words<Impl>;
  return program;
}

TEST(ZooEmbeddings, EmbeddingWithPaddingEqualsTheUnshardedRun) {
  expect_equals_unsharded(word_program<nn::EmbeddingImpl>(nn::EmbeddingOptions(kWords, 4).padding_idx(2)));
}

TEST(ZooEmbeddings, SparseGradientsAreAddedToADenseSlot) {
  auto program = word_program<nn::EmbeddingImpl>(nn::EmbeddingOptions(kWords, 4).sparse(true));
  auto run = program.run;
  program.run = [run](nn::EmbeddingImpl& model, const Role& role) {
    auto losses = run(model, role);
    EXPECT_EQ(model.weight.grad().is_sparse(), !role.is_sharded());
    return losses;
  };
  expect_equals_unsharded(program);
}

TEST(ZooEmbeddings, SparseGradientsOfTwoMicroBatchesAreSummed) {
  auto program = word_program<nn::EmbeddingImpl>(nn::EmbeddingOptions(kWords, 4).sparse(true));
  program.run = [](nn::EmbeddingImpl& model, const Role& role) {
    for (int micro = 0; micro < 2; ++micro) {
      auto batch = role.batch(micro);
      if (role.is_sharded()) group_of(model).set_requires_gradient_sync(micro == 1);
      role.whole(model, [&] { return distance_from_targets(model.forward(labels(batch, {3}, kWords)), batch); })
          .backward();
    }
    return Values{role.gradient(model.weight).to_dense()};
  };
  expect_equals_unsharded(program);
}

TEST(ZooEmbeddings, EmbeddingBagEqualsTheUnshardedRun) {
  expect_equals_unsharded(word_program<nn::EmbeddingBagImpl>(nn::EmbeddingBagOptions(kWords, 4).mode(torch::kSum)));
  expect_equals_unsharded(
      word_program<nn::EmbeddingBagImpl>(nn::EmbeddingBagOptions(kWords, 4).mode(torch::kMean).sparse(true)),
      worlds_up_to(3));
}

TEST(ZooEmbeddings, MaxNormIsRefusedBecauseItWritesInForward) {
  for (int world : worlds_up_to(2)) {
    std::vector<nn::Embedding> models;
    for (int r = 0; r < world; ++r)
      models.push_back(build_alike([] { return nn::Embedding(nn::EmbeddingOptions(kWords, 4).max_norm(0.5)); }));
    run_thread_ranks(world, [&](int r) {
      auto model = fully_shard(models[static_cast<size_t>(r)]);
      try {
        model(torch::arange(3));
        ADD_FAILURE() << "a renormalising embedding was accepted";
      } catch (const UsageError& error) {
        EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("'weight'"), testing::HasSubstr("renorm"),
                                                 testing::HasSubstr("would be lost")));
      }
    });
  }
}

// The head's weight is the embedding's: one tensor, registered twice.
struct Tied : nn::Module {
  struct Head : nn::Module {
    torch::Tensor weight, bias;
    explicit Head(const torch::Tensor& shared) {
      weight = register_parameter("weight", shared);
      bias = register_parameter("bias", torch::zeros({kWords}));
    }
    torch::Tensor forward(const torch::Tensor& x) { return torch::linear(x, weight, bias); }
  };
  nn::Embedding words{kWords, 5};
  nn::Linear inner{5, 5};
  std::shared_ptr<Head> head;
  Tied() {
    register_module("words", words);
    register_module("inner", inner);
    head = register_module("head", std::make_shared<Head>(words->weight));
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    return head->forward(torch::tanh(inner->forward(words->forward(ids))));
  }
};

TEST(ZooEmbeddings, WeightsTiedInOneGroupEqualTheUnshardedRun) {
  auto program = word_program<Tied>();
  program.shard = shard_as_one_group;
  expect_equals_unsharded(program);
}

TEST(ZooEmbeddings, WeightsTiedAcrossGroupsEqualTheUnshardedRun) {
  auto program = word_program<Tied>();
  expect_equals_unsharded(program);
  expect_equals_unsharded(program, worlds_up_to(8));
}

TEST(ZooEmbeddings, APolicyGivesATiedWeightToOneGroupBesideAFrozenLayer) {
  auto program = word_program<Tied>();
  program.build = [] {
    auto net = std::make_shared<Tied>();
    for (auto& parameter : net->inner->parameters()) parameter.set_requires_grad(false);
    return net;
  };
  program.shard = [](Tied& net, const FullyShardOptions& given) {
    auto options = given;
    options.auto_wrap_policy = [](const WrapCandidate& candidate) { return candidate.unwrapped_numel > 0; };
    const auto model = fully_shard(net, options);
    EXPECT_EQ(group_of(*net.words).stats().parameter_numel, kWords * 5);
    EXPECT_EQ(group_of(*net.inner).stats().parameter_numel, 5 * 5 + 5);
    EXPECT_EQ(model.stats().parameter_numel, kWords * 5 + 5 * 5 + 5 + kWords) << "of the head the bias alone";
  };
  expect_equals_unsharded(program, {2});
}

TEST(ZooEmbeddings, TiedWeightsInFloat32StayWithinTheirRounding) {
  auto program = word_program<Tied>();
  program.dtype = torch::kFloat;
  program.tolerance = 5e-6;
  expect_equals_unsharded(program);
}

TEST(ZooEmbeddings, HandleListsATiedParameterOnceAndTheModuleAsTorchDoes) {
  auto model = std::make_shared<Tied>();
  run_thread_ranks(1, [&](int) {
    fully_shard(*model->words);
    auto sharded = fully_shard(model);
    EXPECT_EQ(sharded.parameters().size(), 4U);
    EXPECT_EQ(sharded->parameters().size(), 5U);
    EXPECT_EQ(sharded.stats().parameter_numel, kWords * 5 + 30 + kWords);
  });
}

// `reader` owns no weights of its own: it uses those of `owner`, a group with another forward.
struct Borrowing : nn::Module {
  nn::Embedding owner{kWords, 5};
  nn::Linear inner{5, 4};
  Borrowing() {
    register_module("owner", owner);
    register_module("inner", inner);
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    auto h = torch::tanh(inner->forward(owner->forward(ids)));
    h = torch::matmul(h, inner->weight);  // once more, transposed
    return torch::linear(h, owner->weight) + owner->weight.sum() * inner->bias.mean();
  }
};

TEST(ZooEmbeddings, AnotherModulesWeightsUsedSeveralTimesEqualTheUnshardedRun) {
  expect_equals_unsharded(word_program<Borrowing>());
}

// A block that asks for its parameter's sizes before anything has read it, used three times per forward.
struct Thrice : nn::Module {
  struct Block : nn::Module {
    torch::Tensor weight, gain;
    Block() {
      weight = register_parameter("weight", torch::randn({5, 5}) * 0.3);
      gain = register_parameter("gain", torch::ones({5}));
    }
    torch::Tensor forward(const torch::Tensor& x) {
      auto rows = weight.size(0), columns = weight.sizes().back();
      auto identity = torch::eye(rows, columns, weight.options());
      return torch::tanh(torch::mm(x.reshape({-1, columns}), weight.t() + identity)).reshape(x.sizes()) * gain;
    }
  };
  nn::Embedding words{kWords, 5};
  std::shared_ptr<Block> block = std::make_shared<Block>();
  nn::Linear head{5, 2};
  Thrice() {
    register_module("words", words);
    register_module("block", block);
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    auto h = words->forward(ids);
    for (int i = 0; i < 3; ++i) h = h + block->forward(h);
    return head->forward(h);
  }
};

TEST(ZooEmbeddings, BlockUsedThriceWhoseSizesAreReadFirstEqualsTheUnshardedRun) {
  expect_equals_unsharded(word_program<Thrice>());
}

// One module registered under two names.
struct SharedChild : nn::Module {
  nn::Embedding words{kWords, 5};
  nn::Linear first{5, 5}, second{nullptr};
  SharedChild() : second(first) {
    register_module("words", words);
    register_module("first", first);
    register_module("second", second);
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    return second->forward(torch::tanh(first->forward(words->forward(ids))));
  }
};

TEST(ZooEmbeddings, ModuleRegisteredTwiceEqualsTheUnshardedRun) {
  auto program = word_program<SharedChild>();
  program.shard = shard_as_one_group;
  expect_equals_unsharded(program);
  program.shard = [](SharedChild& m, const FullyShardOptions& options) {
    fully_shard(*m.first, options);
    fully_shard(static_cast<nn::Module&>(m), options);
  };
  expect_equals_unsharded(program, worlds_up_to(3));
}

}  // namespace
}  // namespace fsdp::test
