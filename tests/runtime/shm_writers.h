#pragma once
/// \file
/// Ranks that share memory: one reads rows that the others are about to write.

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "comm/core/fault_point.h"
#include "support/small_net.h"

namespace fsdp::test {

constexpr int kReaders = 3;
constexpr auto kMoment = std::chrono::milliseconds(60);
constexpr auto kLong = std::chrono::seconds(30);

inline thread_local bool is_writer = false;

// Watches ranks that are about to write the rows of one group: `count` ranks, by default all but rank 0.
class Writers {
 public:
  explicit Writers(int count = kReaders - 1) : count_(count) {
    current = this;
    on_fault_point = [](const char* place) { current->pass(place); };
  }
  ~Writers() { on_fault_point = nullptr; }

  // Expects that all writers wait. It is called on a rank that must not let them write.
  void expect_waiting(std::chrono::milliseconds moment = kMoment) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(moved_.wait_for(lock, kLong, [&] { return at_gate_ == count_; }));
    EXPECT_FALSE(moved_.wait_for(lock, moment, [&] { return writing_ > 0; })) << "a peer writes under a reader";
  }
  // Expects that all writers begin to write. It is called on rank 0, which does nothing else that could let them write.
  void expect_writing() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(moved_.wait_for(lock, kLong, [&] { return writing_ == count_; })) << "peers wait for no reader";
  }

 private:
  void pass(const std::string& place) {
    if (!is_writer) return;
    const std::lock_guard lock(mutex_);
    at_gate_ += place == "rows gate";
    writing_ += place == "rows writing";
    moved_.notify_all();
  }

  inline static Writers* current = nullptr;
  const int count_;
  std::mutex mutex_;
  std::condition_variable moved_;
  int at_gate_ = 0, writing_ = 0;
};

inline void write_rows(SmallNetImpl& net, double value = 1.0) {
  torch::NoGradGuard no_grad;
  for (auto& parameter : net.parameters()) parameter.add_(value);
}

inline double sum_of_parameters(const SmallNetImpl& net) {
  double sum = 0;
  for (const auto& parameter : net.parameters())
    sum += (parameter * 1.0).detach().to(torch::kDouble).sum().item<double>();
  return sum;
}

inline std::shared_ptr<SmallNetImpl> shm_net(bool is_frozen = false) {
  auto net = alike_small_net(torch::kFloat, 12, 2);
  for (auto& parameter : net->parameters()) parameter.set_requires_grad(!is_frozen);
  return net;
}

// One rank's model, which is one param group, and functions that every rank calls.
struct Reader {
  explicit Reader(bool is_frozen = false) : module(shm_net(is_frozen)) {}

  torch::Tensor output() const { return net.forward(x).sum(); }
  torch::Tensor forward() const {
    ForwardScope scope(group);
    return output();
  }
  // Returns two outputs that are computed in one scope.
  std::pair<torch::Tensor, torch::Tensor> two_outputs() const {
    ForwardScope scope(group);
    auto first = output();
    return {first, output()};
  }
  // Returns the sum of all parameters, which it reads in a scope.
  double sum() const {
    torch::NoGradGuard no_grad;
    ForwardScope scope(group);
    return sum_of_parameters(net);
  }

  const std::shared_ptr<SmallNetImpl> module;
  SmallNetImpl& net = *module;
  const Group group = fully_shard(static_cast<torch::nn::Module&>(net));
  torch::Tensor x = torch::linspace(-1, 1, 10).reshape({2, 5}).requires_grad_();
  bool has_written = false;
};

inline void run_readers(int world, const std::function<void(int rank, Reader&)>& run, bool is_frozen = false) {
  run_thread_ranks_with(world, {.backend = "shm"}, [&](int rank) {
    Reader reader(is_frozen);
    run(rank, reader);
  });
}

// Runs `before` on every rank. Then all ranks but 0 write the rows, while rank 0 runs `meanwhile` and writes
// afterwards. Gathers that rank 0 alone has made in `meanwhile` are forgotten before the ranks train on.
inline void run_against_writers(const std::function<torch::Tensor(Reader&)>& before,
                                const std::function<void(Reader&, torch::Tensor, Writers&)>& meanwhile,
                                bool is_frozen = false) {
  Writers writers;
  const auto run = [&](int rank, Reader& reader) {
    auto y = before(reader);
    is_writer = rank != 0;
    if (is_writer)
      write_rows(reader.net);
    else
      meanwhile(reader, std::move(y), writers);
    is_writer = false;
    if (rank == 0 && !reader.has_written) write_rows(reader.net);
    reader.group.reset_iter_state();
    reader.forward().backward();
  };
  run_readers(kReaders, run, is_frozen);
}

// Multiplies x by a weight in a custom Function. Autograd does not know what its backward reads.
struct OwnLinear : torch::autograd::Function<OwnLinear> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& weight) {
    context->save_for_backward({x, weight});
    return torch::matmul(x, weight.t());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    return {torch::matmul(gradients[0], saved[1]), torch::matmul(gradients[0].t(), saved[0])};
  }
};

inline torch::Tensor own_output(SmallNetImpl& net, const torch::Tensor& x) {
  return OwnLinear::apply(OwnLinear::apply(x, net.first->weight), net.head->weight).sum();
}

inline torch::Tensor own_forward(Reader& reader) {
  ForwardScope scope(reader.group);
  return own_output(reader.net, reader.x);
}

}  // namespace fsdp::test
