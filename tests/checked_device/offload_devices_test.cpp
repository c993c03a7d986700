// Tests where sharded rows lie, on the host or on the device, also for models that the device could not hold.

#include "api/group_view.h"
#include "checked_device/training.h"
#include "runtime/param_group.h"
#include "support/checked_device/host_memory.h"

namespace fsdp::test::checked {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

// Each layer takes 8 KiB.
struct DeepNetImpl : torch::nn::Module {
  static constexpr int64_t kDim = 32, kLayers = 16, kLayerBytes = kDim * kDim * 8;
  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList());
  DeepNetImpl() {
    for (int64_t i = 0; i < kLayers; ++i)
      blocks->push_back(torch::nn::Linear(torch::nn::LinearOptions(kDim, kDim).bias(false)));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : *blocks) x = x + torch::tanh(layer->as<torch::nn::Linear>()->forward(x));
    return x;
  }
};

// The model is built on the CPU, but sharded for the rank's device.
DeviceTraining<DeepNetImpl> deep_net_on_device(const FullyShardOptions& wanted) {
  const auto shard = [wanted](DeepNetImpl& net) {
    auto options = wanted;
    options.device = streams().getDevice();
    return shard_all(net, options);
  };
  auto training = device_training<DeepNetImpl>([] { return std::make_shared<DeepNetImpl>(); }, shard, DeepNetImpl::kDim,
                                               DeepNetImpl::kDim);
  training.is_built_on_device = false;
  return training;
}

// With one rank, the rows alone exceed the device's memory. With several ranks, rows, gradients and optimizer state
// together exceed it.
TEST_F(CheckedOffload, AModelLargerThanTheDeviceTrains) {
  CachingAllocator::get().set_limit(10 * DeepNetImpl::kLayerBytes);
  for (const int world : {1, 3}) expect_steps_are_ordered(deep_net_on_device(on_host()), world, 1);
  for (const int world : {1, 2})
    EXPECT_THROW(expect_steps_are_ordered(deep_net_on_device({}), world), std::exception) << "without offloading";
  violations();  // discards the violations that the exceptions left
}

TEST_F(CheckedOffload, AModelWithoutMemoryGetsItsRowsOnTheHost) {
  const auto build = [] { return std::make_shared<SmallNetImpl>(11, 1); };
  const auto expected = build_alike(build);
  run_ranks(2, [&](int rank) {
    auto options = on_host();
    options.device = device(rank);
    const auto deferred = build_alike([&] { return deferred_init(build); });
    shard_blocks(*deferred, options);
    for (size_t i = 0; i < deferred->parameters().size(); ++i) {
      EXPECT_TRUE(deferred->parameters()[i].is_cpu());
      EXPECT_TRUE(torch::equal(full_tensor(deferred->parameters()[i]), expected->parameters()[i])) << i;
    }
    const auto meta = build_alike([&] { return meta_init(build); });
    const auto group = shard_blocks(*meta, on_host());
    to_empty(group, device(rank));
    EXPECT_TRUE(meta->head->weight.is_cpu());
    initialize(group, [&] {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : meta->parameters()) parameter.fill_(0.5);
    });
    const torch::NoGradGuard no_grad;
    const ForwardScope scope(group);
    EXPECT_EQ(meta->head->weight.device(), device(rank));
    EXPECT_EQ(meta->head->weight.sum().item<double>(), 0.5 * 33);
  });
}

struct BufferNetImpl : torch::nn::Module {
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(4, 4));
  torch::Tensor scale = register_buffer("scale", torch::full({4}, 2.0)),
                own = register_parameter("own", torch::ones({4}));
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

TEST_F(CheckedOffload, WhatItCannotDoIsRefused) {
  run_ranks(2, [](int rank) {
    const auto net = build_alike([] { return std::make_shared<SmallNetImpl>(); });
    const auto refused_on = [&](c10::Device device, const auto& message) {
      auto options = on_host();
      options.device = device;
      EXPECT_THAT([&] { shard_blocks(*net, options); }, ThrowsMessage<UsageError>(message));
    };
    refused_on(c10::Device(c10::kCUDA, 5),
               AllOf(HasSubstr(c10::str("[fsdp rank ", rank, "/2] fully_shard: FullyShardOptions::device")),
                     HasSubstr("found cuda:5")));
    refused_on(device(kDevices), HasSubstr("(checked devices here: 4)"));
    refused_on(c10::kCPU, HasSubstr("disk_policy"));
    EXPECT_EQ(net->first->weight.size(0), 11) << "the refused model must not be sharded";

    const auto group = shard_blocks(*net, on_host({.strategy = Strategy::kReplicate}));  // rows have whole sizes
    EXPECT_THAT([&] { to(group, c10::kCPU); }, ThrowsMessage<UsageError>(HasSubstr("offload_policy")));
    EXPECT_THAT([&] { to(group, c10::Device(c10::kCUDA, 0)); }, ThrowsMessage<UsageError>(HasSubstr("found cuda:0")));

    const auto other = build_alike([] { return std::make_shared<SmallNetImpl>(); });
    other->to(device(rank));
    EXPECT_THROW(shard_blocks(*other, rank == 0 ? on_host() : FullyShardOptions()), Mismatch) << "ranks differ";
  });
}

TEST_F(CheckedOffload, CountsBytesOfTheHost) {
  const auto training = small_net(on_host());
  on_ranks(training, 2, [&](SmallNetImpl& net, const Group& group, int) {
    const auto rows = group.stats().host.current;
    EXPECT_GE(rows, group.stats().rows_numel * 8);
    EXPECT_TRUE(net.head->weight.is_cpu());
    EXPECT_TRUE(HostMemory::get().is_pinned(param_groups(group).front()->flats().front().rows().buffer->data()));
    optim::AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(1e-2));
    run_step(training, net, group, optimizer, training.share_of());
    EXPECT_TRUE(net.head->weight.grad().is_cpu());
    EXPECT_GT(group.stats().host.current, 7 * rows / 2);
    EXPECT_EQ(group.stats().rows.current, 0);
    EXPECT_EQ(group.stats().gradient.current, 0);
    EXPECT_EQ(group.stats().optimizer.current, 0);
    EXPECT_EQ(group.stats().whole.current, 0);
  });
}

}  // namespace
}  // namespace fsdp::test::checked
