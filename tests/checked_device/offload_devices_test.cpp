// Where what is sharded comes to lie: on the host and on the device, also of models that the device could not hold.

#include <gmock/gmock.h>

#include "checked_device/offload.h"

namespace fsdp::test::checked {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Layers of 8 KiB each.
struct DeepNetImpl : torch::nn::Module {
  static constexpr int64_t kDim = 32, kLayers = 16, kLayerBytes = kDim * kDim * 8;
  torch::nn::ModuleList layers;
  DeepNetImpl() {
    register_module("layers", layers);
    for (int64_t i = 0; i < kLayers; ++i)
      layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(kDim, kDim).bias(false)));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : *layers) x = x + torch::tanh(layer->as<torch::nn::Linear>()->forward(x));
    return x;
  }
};

// Built on the CPU, whole on the rank's device.
DeviceTraining<DeepNetImpl> deep_net_on_device(const FullyShardOptions& wanted) {
  DeviceTraining<DeepNetImpl> training;
  training.build = [] { return std::make_shared<DeepNetImpl>(); };
  training.shard = [wanted](DeepNetImpl& net) {
    auto options = wanted;
    options.device = c10::impl::VirtualGuardImpl(kType).getDevice();
    for (auto& layer : *net.layers) fully_shard(*layer, options);
    return fully_shard(static_cast<torch::nn::Module&>(net), options);
  };
  training.inputs = [](const Batch& batch) { return samples(batch, {DeepNetImpl::kDim}); };
  training.targets = [](const Batch& batch) { return samples(batch, {DeepNetImpl::kDim}); };
  training.is_built_on_device = false;
  training.finish();
  return training;
}

// At one rank rows alone are more than the device has; at two and three rows, gradients and optimizer state are.
constexpr size_t kLimit = 10 * DeepNetImpl::kLayerBytes;

TEST_F(CheckedOffload, AModelLargerThanTheDeviceTrains) {
  for (const int world : worlds_up_to(3)) {
    CachingAllocator::get().set_limit(kLimit);
    expect_ordered(deep_net_on_device(on_host()), world);
    CachingAllocator::get().set_limit(std::nullopt);
  }
}

TEST_F(CheckedOffload, WithoutItAModelLargerThanTheDeviceDoesNotTrain) {
  for (const int world : {1, 2}) {
    CachingAllocator::get().set_limit(kLimit);
    EXPECT_THROW(expect_steps_are_ordered(deep_net_on_device({}), world), std::exception);
    CachingAllocator::get().set_limit(std::nullopt);
  }
  violations();  // after an exception
}

TEST_F(CheckedOffload, AModelWithoutMemoryGetsItsRowsOnTheHost) {
  for (const int world : {1, 2}) {
    std::vector<std::shared_ptr<SmallNetImpl>> deferred, meta;
    for (int rank = 0; rank < world; ++rank) {
      torch::manual_seed(7);
      deferred.push_back(deferred_init([] { return std::make_shared<SmallNetImpl>(); }));
      meta.push_back(meta_init([] { return std::make_shared<SmallNetImpl>(); }));
    }
    torch::manual_seed(7);
    const SmallNet expected;
    run_ranks(world, [&](int rank) {
      auto options = on_host();
      options.device = device(rank);
      const auto& net = deferred[static_cast<size_t>(rank)];
      shard_blocks(*net, options);
      for (size_t i = 0; i < net->parameters().size(); ++i) {
        EXPECT_TRUE(net->parameters()[i].is_cpu());
        EXPECT_TRUE(torch::equal(full_tensor(net->parameters()[i]), expected->parameters()[i])) << i;
      }
      auto& empty = *meta[static_cast<size_t>(rank)];
      const auto group = shard_blocks(empty, on_host());
      to_empty(group, device(rank));
      EXPECT_TRUE(empty.head->weight.is_cpu());
      initialize(group, [&] {
        const torch::NoGradGuard no_grad;
        for (auto& parameter : empty.parameters()) parameter.fill_(0.5);
      });
      const torch::NoGradGuard no_grad;
      ForwardScope scope(group);
      EXPECT_EQ(empty.head->weight.device(), device(rank));
      EXPECT_EQ(empty.head->weight.sum().item<double>(), 0.5 * 33);
    });
  }
}

struct BufferNetImpl : torch::nn::Module {
  torch::nn::Linear layer{torch::nn::LinearOptions(4, 4)};
  torch::Tensor scale, own;
  BufferNetImpl() {
    register_module("layer", layer);
    scale = register_buffer("scale", torch::full({4}, 2.0));
    own = register_parameter("own", torch::ones({4}));
  }
};

TEST_F(CheckedOffload, ParametersAndBuffersGoToTheDeviceThatIsNamedAndIgnoredOnesStay) {
  run_ranks(2, [](int rank) {
    for (const bool offloads : {false, true}) {
      auto net = build_alike([] { return std::make_shared<BufferNetImpl>(); });
      const auto buffer = net->scale;
      FullyShardOptions options;
      options.device = device(rank);
      options.ignored_params = {net->own};
      if (offloads) options = on_host(options);
      const auto group = fully_shard(static_cast<torch::nn::Module&>(*net), options);
      EXPECT_EQ(net->layer->weight.device(), offloads ? c10::Device(c10::kCPU) : device(rank));
      EXPECT_EQ(buffer.device(), device(rank));
      EXPECT_EQ(buffer.sum().item<double>(), 8);
      EXPECT_TRUE(net->own.is_cpu());
      torch::Tensor loss;
      {
        ForwardScope scope(group);
        loss = (net->layer->forward(torch::ones({1, 4}, device(rank))) * buffer).sum();
      }
      loss.backward();
      EXPECT_EQ(net->layer->weight.grad().device(), net->layer->weight.device());
    }
  });
}

std::string usage_error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const UsageError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST_F(CheckedOffload, WhatItCannotDoIsRefused) {
  run_ranks(2, [](int rank) {
    const auto net = build_alike([] { return std::make_shared<SmallNetImpl>(); });
    auto nowhere = on_host();
    nowhere.device = c10::Device(c10::kCUDA, 5);
    EXPECT_THAT(usage_error_of([&] { shard_blocks(*net, nowhere); }),
                AllOf(HasSubstr(c10::str("[fsdp rank ", rank, "/2] fully_shard: FullyShardOptions::device")),
                      HasSubstr("found cuda:5")));
    nowhere.device = device(DeviceGuardImpl::kDevices);
    EXPECT_THAT(usage_error_of([&] { shard_blocks(*net, nowhere); }), HasSubstr("has 4 here"));
    auto on_cpu = on_host();
    on_cpu.device = c10::kCPU;
    EXPECT_THAT(usage_error_of([&] { shard_blocks(*net, on_cpu); }), HasSubstr("disk_policy"));
    EXPECT_EQ(net->first->weight.size(0), 11) << "it was not sharded";

    const auto group = shard_blocks(*net, on_host({.strategy = Strategy::kReplicate}));  // rows have whole sizes
    EXPECT_THAT(usage_error_of([&] { to(group, c10::kCPU); }), HasSubstr("offload_policy"));
    EXPECT_THAT(usage_error_of([&] { to(group, c10::Device(c10::kCUDA, 0)); }), HasSubstr("found cuda:0"));
    // A graph that waits for the gradient of rows would get one from another device.
    const auto accumulator = torch::autograd::impl::grad_accumulator(net->head->weight);
    EXPECT_THAT(usage_error_of([&] { ForwardScope scope(group); }), HasSubstr("gradient accumulator"));
    barrier();
  });
}

TEST_F(CheckedOffload, IsRefusedWhereRanksDiffer) {
  run_ranks(2, [](int rank) {
    const auto net = build_alike([] { return std::make_shared<SmallNetImpl>(); });
    net->to(device(rank));
    EXPECT_THROW(shard_blocks(*net, rank == 0 ? on_host() : FullyShardOptions()), Mismatch);
  });
}

}  // namespace
}  // namespace fsdp::test::checked
