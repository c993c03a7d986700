// Tests of embeddings, of tied weights, and of parameters that are used elsewhere or several times.

#include "zoo/zoo.h"

namespace fsdp::test {
namespace {

constexpr int64_t kWords = 13;

template <class Impl>
Tensor words_loss(Impl& model, const Batch& batch) {
  return distance_from_targets(model.forward(labels(batch, {3}, kWords)), batch);
}

// Returns a program that trains an `Impl` made from `args` on words.
template <class Impl, class... Args>
AnyProgram on_words(Shard shard, Args... args) {
  auto program = program_of<Impl>(
      [](Impl& model, const Role& role) {
        // SGD has no momentum here, because with it LibTorch refuses sparse gradients.
        torch::optim::SGD optimizer(model.parameters(), 0.1);
        return descend_by(optimizer, [&](int step) {
          return backward_of(role.whole(model, [&] { return words_loss(model, role.batch(step)); }));
        });
      },
      std::move(shard));
  program.build = [=] { return std::make_shared<Impl>(args...); };
  program.largest_world = 8;
  return program;
}

// The head has the embedding's weight: one tensor is registered twice.
struct Tied : nn::Module {
  struct Head : nn::Module {
    Tensor weight, bias = register_parameter("bias", torch::zeros({kWords}));
    explicit Head(const Tensor& shared) : weight(register_parameter("weight", shared)) {}
    Tensor forward(const Tensor& x) { return torch::linear(x, weight, bias); }
  };
  nn::Embedding words = register_module("words", nn::Embedding(kWords, 5));
  nn::Linear inner = register_module("inner", nn::Linear(5, 5));
  std::shared_ptr<Head> head = register_module("head", std::make_shared<Head>(words->weight));
  Tensor forward(const Tensor& ids) { return head->forward(torch::tanh(inner->forward(words->forward(ids)))); }
};

// `reader` has no weights of its own; it uses those of `owner`, a group with another forward.
struct Borrowing : nn::Module {
  nn::Embedding owner = register_module("owner", nn::Embedding(kWords, 5));
  nn::Linear inner = register_module("inner", nn::Linear(5, 4));
  Tensor forward(const Tensor& ids) {
    auto h = torch::tanh(inner->forward(owner->forward(ids)));
    h = torch::matmul(h, inner->weight);  // uses the weight again, transposed
    return torch::linear(h, owner->weight) + owner->weight.sum() * inner->bias.mean();
  }
};

// The block reads its parameter's sizes before anything has read its values, and each forward uses it three times.
struct Thrice : nn::Module {
  struct Block : nn::Module {
    Tensor weight = register_parameter("weight", torch::randn({5, 5}) * 0.3);
    Tensor gain = register_parameter("gain", torch::ones({5}));
    Tensor forward(const Tensor& x) {
      auto rows = weight.size(0), columns = weight.sizes().back();
      auto identity = torch::eye(rows, columns, weight.options());
      return torch::tanh(torch::mm(x.reshape({-1, columns}), weight.t() + identity)).reshape(x.sizes()) * gain;
    }
  };
  nn::Embedding words = register_module("words", nn::Embedding(kWords, 5));
  std::shared_ptr<Block> block = register_module("block", std::make_shared<Block>());
  nn::Linear head = register_module("head", nn::Linear(5, 2));
  Tensor forward(const Tensor& ids) {
    auto h = words->forward(ids);
    for (int i = 0; i < 3; ++i) h = h + block->forward(h);
    return head->forward(h);
  }
};

// One module is registered under two names.
struct SharedChild : nn::Module {
  nn::Embedding words = register_module("words", nn::Embedding(kWords, 5));
  nn::Linear first = register_module("first", nn::Linear(5, 5)), second = register_module("second", first);
  Tensor forward(const Tensor& ids) { return second->forward(torch::tanh(first->forward(words->forward(ids)))); }
};

void shard_shared_child(nn::Module& model, const FullyShardOptions& options) {
  fully_shard(*dynamic_cast<SharedChild&>(model).first, options);
  fully_shard(model, options);
}

class ZooEmbeddings : public ZooTable {};

TEST_P(ZooEmbeddings, EqualTheUnshardedRun) { expect_same(); }

const auto kChildren = shard_children_then_root;
const auto kOneGroup = shard_as_one_group;
using nn::EmbeddingBagOptions;

INSTANTIATE_TEST_SUITE_P(
    Zoo, ZooEmbeddings,
    testing::Values(
        ZooCase{"WithPadding", on_words<nn::EmbeddingImpl>(kChildren, nn::EmbeddingOptions(kWords, 4).padding_idx(2))},
        ZooCase{"BagOfSums",
                on_words<nn::EmbeddingBagImpl>(kChildren, EmbeddingBagOptions(kWords, 4).mode(torch::kSum))},
        ZooCase{
            "SparseBagOfMeans",
            on_words<nn::EmbeddingBagImpl>(kChildren, EmbeddingBagOptions(kWords, 4).mode(torch::kMean).sparse(true))},
        ZooCase{"TiedInOneGroup", on_words<Tied>(kOneGroup)}, ZooCase{"TiedAcrossGroups", on_words<Tied>(kChildren)},
        ZooCase{"OfAnotherModuleUsedSeveralTimes", on_words<Borrowing>(kChildren)},
        ZooCase{"BlockUsedThriceWhoseSizesAreReadFirst", on_words<Thrice>(kChildren)},
        ZooCase{"ModuleRegisteredTwiceInOneGroup", on_words<SharedChild>(kOneGroup)},
        ZooCase{"ModuleRegisteredTwiceAsAGroup", on_words<SharedChild>(shard_shared_child)}),
    name_of_case);

TEST(ZooWords, SparseGradientsOfMicroBatchesAreAddedToADenseSlot) {
  auto program = on_words<nn::EmbeddingImpl>(kChildren, nn::EmbeddingOptions(kWords, 4).sparse(true));
  program.run = [](nn::Module& module, const Role& role) {
    auto& model = dynamic_cast<nn::EmbeddingImpl&>(module);
    for (int micro = 0; micro < 2; ++micro) {
      if (role.is_sharded()) group_of(model).set_requires_gradient_sync(micro == 1);
      role.whole(model, [&] { return words_loss(model, role.batch(micro)); }).backward();
    }
    EXPECT_EQ(model.weight.grad().is_sparse(), !role.is_sharded());
    Values values{role.gradient(model.weight).to_dense()};
    torch::optim::SGD(model.parameters(), 0.1).step();
    return values;
  };
  expect_equals_unsharded(program);
}

TEST(ZooWords, ATiedWeightBelongsToOneGroupOfAPolicyAndIsListedOnceBesideAFrozenLayer) {
  auto program = on_words<Tied>([](nn::Module& module, FullyShardOptions options) {
    auto& net = dynamic_cast<Tied&>(module);
    options.auto_wrap_policy = [](const WrapCandidate& candidate) { return candidate.unwrapped_numel > 0; };
    const auto model = fully_shard(net, options);
    EXPECT_EQ(group_of(*net.words).stats().parameter_numel, kWords * 5);
    EXPECT_EQ(group_of(*net.inner).stats().parameter_numel, 5 * 5 + 5);
    EXPECT_EQ(model.stats().parameter_numel, kWords * 5 + 5 * 5 + 5 + kWords) << "of the head the bias alone";
    EXPECT_EQ(model.parameters().size(), 4U);
    EXPECT_EQ(model->parameters().size(), 5U) << "as torch does";
  });
  program.build = [] {
    auto net = std::make_shared<Tied>();
    set_trainable(*net->inner, false);
    return net;
  };
  expect_equals_unsharded(program);
}

}  // namespace
}  // namespace fsdp::test
