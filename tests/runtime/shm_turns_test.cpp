// Tests that readers and writers of different speed take turns if ranks share memory.

#include <gmock/gmock.h>

#include <array>
#include <barrier>
#include <thread>

#include "api/group_view.h"
#include "runtime/param_group.h"
#include "runtime/shm_writers.h"

namespace fsdp::test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using torch::Tensor;

void delay_if(bool is_slow) {
  if (is_slow) std::this_thread::sleep_for(kMoment);
}

double numel_of(const Reader& reader) { return static_cast<double>(reader.group.stats().parameter_numel); }

// The slow reader also writes late, so the readers of the next step wait for it.
TEST(Turns, AWriterWaitsForASlowReader) {
  for (int world : {2, 4})
    run_readers(world, [](int rank, Reader& reader) {
      const double before = reader.sum();
      for (int step = 0; step < 3; ++step) {
        const double expected = before + 0.5 * step * numel_of(reader);
        torch::NoGradGuard no_grad;
        {
          ForwardScope scope(reader.group);
          EXPECT_NEAR(sum_of_parameters(reader.net), expected, 1e-2) << "a late writer in step " << step;
          delay_if(rank == step % world_size());
          EXPECT_NEAR(sum_of_parameters(reader.net), expected, 1e-2) << "an early writer in step " << step;
        }
        write_rows(reader.net, 0.5);
      }
    });
}

// A function whose backward reads the weights as they are at that time, and takes as long as `delay`.
struct ReadsInBackward : torch::autograd::Function<ReadsInBackward> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x, SmallNetImpl* net) {
    net_ = net;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    const double sum = sum_of_parameters(*net_);
    std::this_thread::sleep_for(delay);
    EXPECT_EQ(sum, sum_of_parameters(*net_)) << "a peer wrote meanwhile";
    return {gradients[0] * sum, {}};
  }
  static thread_local SmallNetImpl* net_;
  static thread_local std::chrono::milliseconds delay;
};
thread_local SmallNetImpl* ReadsInBackward::net_ = nullptr;
thread_local std::chrono::milliseconds ReadsInBackward::delay{0};

// Returns a function of `x` whose backward reads the parameters.
Tensor read_in_backward(Reader& reader, const Tensor& x) {
  ForwardScope scope(reader.group);
  return ReadsInBackward::apply(x, &reader.net);
}

// Rank 1 first writes slowly and then reads slowly.
TEST(Turns, ABackwardAfterAnUpdateReadsWhatASlowPeerWroteAndAWriterWaitsForIt) {
  run_readers(2, [](int rank, Reader& reader) {
    const double before = reader.sum();
    const auto x = torch::ones({1}, torch::requires_grad());
    const auto y = read_in_backward(reader, x);
    delay_if(rank == 1);
    write_rows(reader.net, 0.5);
    ReadsInBackward::delay = rank == 1 ? kMoment : std::chrono::milliseconds(0);
    y.backward();
    write_rows(reader.net, 1.0);
    EXPECT_NEAR(x.grad().item<double>(), before + numel_of(reader) / 2, 1e-2);
    EXPECT_NEAR(reader.sum(), before + numel_of(reader) * 1.5, 1e-2);
  });
}

// Thread ranks have one mapping of the memory that they share.
TEST(Turns, RowsAreThereOncePerHost) {
  constexpr int kWorld = 3;
  std::vector<std::vector<const void*>> seen(kWorld);
  int64_t rows_bytes = 0, whole_bytes = 0;
  std::mutex mutex;
  run_readers(kWorld, [&](int rank, Reader& reader) {
    ForwardScope scope(reader.group);
    for (const auto& parameter : reader.net.parameters()) {
      (parameter * 1.0).sum();  // reads the parameter
      seen[static_cast<size_t>(rank)].push_back(parameter.const_data_ptr());
    }
    const auto stats = reader.group.stats();
    const std::lock_guard lock(mutex);
    rows_bytes += stats.rows.current;
    whole_bytes = 0;
    for (const auto& plane : param_groups(reader.group).front()->flats())
      whole_bytes += static_cast<int64_t>(plane.whole().bytes());
    EXPECT_EQ(stats.whole.peak, 0);
  });
  EXPECT_THAT(seen, Each(seen[0]));
  EXPECT_EQ(rows_bytes, whole_bytes);
}

// The reduction takes several rounds, and no rank waits for it in the meantime.
TEST(Turns, AReductionGoesOnWheneverARankComesBy) {
  constexpr int kWorld = 2;
  constexpr int64_t kNumel = int64_t{8} << 20;  // half of it takes 8 slots of 2 MiB
  std::barrier together(kWorld);
  run_readers(kWorld, [&](int rank, Reader&) {
    const auto ranks = default_process_group()->communicator().duplicate("alone");
    const auto input = torch::full({kNumel}, rank + 1.0), output = torch::zeros({kNumel / kWorld});
    std::shared_ptr<Work> work;
    for (int starter = 0; starter < kWorld; ++starter) {  // one by one, or they might complete all rounds
      if (rank == starter) work = ranks->reduce_scatter(output, input, {"slow"});
      together.arrive_and_wait();
    }
    EXPECT_EQ(output[-1].item<double>(), 0.0);
    for (int round = 0; round < 16; ++round) {
      ranks->progress();
      together.arrive_and_wait();
    }
    EXPECT_TRUE(output.eq(3.0).all().item<bool>());
    work->wait();
  });
}

TEST(Turns, OneRankMayWriteItsRowsAloneUnderLocalRows) {
  run_readers(3, [](int rank, Reader& reader) {
    const double before = reader.sum();
    double added = 0;
    if (rank == 2) {
      delay_if(true);
      LocalRows rows(reader.group);
      write_rows(reader.net, 1.0);
      for (const auto& parameter : reader.net.parameters()) added += static_cast<double>(parameter.numel());
    }
    const auto total = all_reduce(torch::tensor({added})).item<double>();
    EXPECT_GT(total, 0);
    EXPECT_NEAR(reader.sum(), before + total, 1e-2);
  });
}

// Expects the Mismatch that all ranks get if they run different programs and then open a scope.
void expect_mismatch(int world, const testing::Matcher<std::string>& says,
                     const std::function<void(int, Reader&)>& run) {
  run_readers(world, [&](int rank, Reader& reader) {
    reader.sum();
    const auto go_on = [&] {
      run(rank, reader);
      reader.sum();
    };
    EXPECT_THAT(go_on, testing::ThrowsMessage<Mismatch>(says)) << "rank " << rank;
  });
}

TEST(Turns, AnOptimizerStepOnOneRankOnlyIsAMismatch) {
  const auto scope = HasSubstr("rank 1 runs barrier of 'forward scope"), writes = HasSubstr("writes to the rows");
  expect_mismatch(3, AllOf(scope, HasSubstr("writes to the rows (optimizer steps): 1")), [](int rank, Reader& reader) {
    if (rank == 1) write_rows(reader.net);
  });
  expect_mismatch(2, AllOf(scope, writes), [](int rank, Reader& reader) {
    for (int step = 0; step < 1 + rank; ++step) write_rows(reader.net);
  });
}

}  // namespace
}  // namespace fsdp::test
