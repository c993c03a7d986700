// Compares keys and values in memory that ranks share with those that travel over Gloo: the bits must be the same, no
// bytes may travel, and no memory may stay. tests/parallel/attention_test.cpp tests the values.

#include <fsdp/fsdp.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <fstream>
#include <functional>
#include <latch>
#include <string>
#include <vector>

#include "comm/core/fault_point.h"
#include "comm/frame.h"
#include "support/counted_memory.h"

namespace fsdp::test {
namespace {

using enum SequenceMethod;

// Size of the pages of shared segments that this process has in memory, and number of segments that it maps. All ranks
// are threads of the process.
struct SharedSegments {
  int64_t kilobytes = 0, count = 0;
};
SharedSegments shared_segments() {
  SharedSegments found;
  std::ifstream maps("/proc/self/smaps");
  bool is_shared = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(' ')) {
      is_shared = line.find("/memfd:") != std::string::npos;
      found.count += is_shared ? 1 : 0;
    } else if (is_shared && line.starts_with("Rss:")) {
      found.kilobytes += std::stoll(line.substr(4));
    }
  }
  return found;
}
// Counts the segments between two barriers, so that every rank has freed what it held.
SharedSegments what_is_there() {
  barrier();
  const auto found = shared_segments();
  barrier();
  return found;
}

// Queries, keys and values are parts of one tensor [batch, tokens, 32], as models have them.
at::Tensor attend(const at::Tensor& x) {
  const auto parts = x.unflatten(2, {8, 4}).transpose(1, 2);
  return torch::scaled_dot_product_attention(parts.narrow(1, 0, 4), parts.narrow(1, 4, 2), parts.narrow(1, 6, 2), {},
                                             0.0, /*is_causal=*/true, {}, /*enable_gqa=*/true)
      .transpose(1, 2)
      .flatten(2);
}

// Leaves of this rank, and the tensors that a program computes from them.
struct DealtTensors {
  explicit DealtTensors(const SequenceParallel& its, at::ScalarType dtype = at::kFloat)
      : sequence(its), dtype_(dtype) {}
  at::Tensor leaf(int64_t length, uint64_t seed = 1) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    const auto whole = at::randn({2, length, 32}, generator, at::kFloat).to(dtype_);
    leaves.push_back(sequence.shard(whole, 1).clone().requires_grad_());
    return leaves.back();
  }
  const SequenceParallel& sequence;
  std::vector<at::Tensor> leaves, outputs;

 private:
  at::ScalarType dtype_;
};

struct AttentionProgram {
  std::string name;
  std::function<void(DealtTensors&)> run;
  at::ScalarType dtype = at::kFloat;
};

const std::vector<AttentionProgram>& programs() {
  static const std::vector<AttentionProgram> all{
      {"one call", [](DealtTensors& its) { attend(its.leaf(23)).sum().backward(); }},
      {"bf16", [](DealtTensors& its) { attend(its.leaf(23)).pow(2).sum().backward(); }, at::kBFloat16},
      {"two forwards, then two backwards",
       [](DealtTensors& its) {
         const auto first = attend(its.leaf(16)), second = attend(its.leaf(16, 2));
         first.pow(2).sum().backward();
         second.pow(3).sum().backward();
       }},
      {"two layers, the longer one later",
       [](DealtTensors& its) {
         const auto first = attend(its.leaf(16));
         attend(its.leaf(40, 2)).pow(2).sum().backward();
         first.pow(3).sum().backward();
       }},
      {"a graph that runs twice",
       [](DealtTensors& its) {
         const auto loss = attend(its.leaf(16)).pow(2).sum();
         loss.backward({}, /*retain_graph=*/true);
         attend(its.leaf(16, 2)).sum().backward();
         loss.backward();
       }},
      {"evaluation between forward and backward",
       [](DealtTensors& its) {
         const auto output = attend(its.leaf(16));
         {
           const at::NoGradGuard no_grad;
           for (uint64_t i = 2; i < 6; ++i) its.outputs.push_back(attend(its.leaf(16, i)));
         }
         const c10::InferenceMode inference;
         its.outputs.push_back(attend(its.leaf(16, 7)).clone());
         const c10::InferenceMode ends(false);
         output.pow(2).sum().backward();
       }},
      {"computed again in backward",
       [](DealtTensors& its) {
         const auto twice = [](const at::Tensor& x) { return torch::cat({attend(x), attend(x * 2)}, 2); };
         const auto x = its.leaf(16);
         attend(activation_checkpoint(twice, activation_checkpoint(twice, x))).pow(2).sum().backward();
       }},
      {"a graph that never runs", [](DealtTensors& its) { its.outputs.push_back(attend(its.leaf(16)).detach()); }},
  };
  return all;
}

struct RingOfRanks {
  SequenceMethod method;
  int ranks, heads = 1;
};

std::vector<at::Tensor> results_of(const AttentionProgram& program, const RingOfRanks& ring) {
  std::unique_ptr<SequenceParallel> sequence;
  if (ring.heads == 1) {
    sequence = std::make_unique<SequenceParallel>(nullptr, ring.method);
  } else {
    static thread_local DeviceMesh mesh = init_device_mesh({ring.ranks, ring.heads}, {"ring", "heads"});
    sequence = std::make_unique<SequenceParallel>(mesh.process_group("ring"), mesh.process_group("heads"), ring.method);
  }
  DealtTensors its(*sequence, program.dtype);
  program.run(its);
  auto results = its.outputs;
  for (const auto& leaf : its.leaves)
    if (leaf.grad().defined()) results.push_back(leaf.grad());
  return results;
}

TEST(KeysOnHost, HaveTheBitsOfThoseThatTravelAndLeaveNothing) {
  for (const RingOfRanks ring : {RingOfRanks{kRing, 2},
                                 {kRing, 3},
                                 {kHeadTail, 2},
                                 {kHeadTail, 4},
                                 {kGather, 2},
                                 {kGather, 3},
                                 {kHeadTail, 2, 2},
                                 {kGather, 2, 2}}) {
    const int world = ring.ranks * ring.heads;
    std::vector<std::vector<std::vector<at::Tensor>>> expected(static_cast<size_t>(world));
    run_thread_ranks_with(world, {.backend = "gloo"}, [&](int rank) {
      for (const auto& program : programs()) expected[static_cast<size_t>(rank)].push_back(results_of(program, ring));
    });
    run_thread_ranks_with(world, {.backend = "shm"}, [&](int rank) {
      SharedSegments before;
      for (int step = 0; step < 6; ++step) {
        for (size_t i = 0; i < programs().size(); ++i) {
          const auto what = str_cat(programs()[i].name, ", method ", static_cast<int>(ring.method), ", rank ", rank,
                                    " of ", world, ", step ", step);
          const auto results = results_of(programs()[i], ring);
          const auto& wanted = expected[static_cast<size_t>(rank)][i];
          ASSERT_EQ(results.size(), wanted.size()) << what;
          for (size_t j = 0; j < wanted.size(); ++j) EXPECT_TRUE(results[j].equal(wanted[j])) << what << ", " << j;
        }
        const auto now = what_is_there();
        if (step == 0) before = now;
        // A second segment is used by a call that finds a slower rank in the call before it.
        EXPECT_LE(now.count, before.count + 2) << "segments are used again";
        EXPECT_LE(now.kilobytes, before.kilobytes + 8 * (now.count - before.count)) << "and their pages go";
      }
    });
  }
}

// Amounts are in units of the bytes of one rank's keys, see docs/sequence.md. Ranks also exchange a few numbers.
TEST(KeysOnHost, AreNotSent) {
  struct Sent {
    SequenceMethod method;
    std::function<int64_t(int64_t ranks)> backward;
  };
  const std::vector<Sent> all{{kRing, [](int64_t n) { return 2 * n; }},
                              {kHeadTail, [](int64_t n) { return 2 * n; }},
                              {kGather, [](int64_t n) { return 2 * (n - 1); }}};
  for (const int world : {2, 4})
    run_thread_ranks_with(world, {.backend = "shm"}, [&](int) {
      for (const auto& [method, in_backward] : all) {
        const SequenceParallel sequence(nullptr, method);
        const auto x = torch::randn({2, 64, 32}, at::kDouble).requires_grad_();
        const auto sent = [unit = 2 * 2 * 64 * 4 * int64_t{sizeof(double)}](const Traffic& traffic) {
          EXPECT_EQ(traffic.between_hosts.sent, 0);
          return static_cast<double>(traffic.inside_host.sent) / static_cast<double>(unit);
        };
        const auto start = traffic();
        const auto output = attend(x);
        const auto between = traffic();
        output.sum().backward();
        EXPECT_LT(sent(between - start), 0.01) << static_cast<int>(method);
        EXPECT_EQ(sent(traffic() - between), in_backward(world)) << static_cast<int>(method);
      }
    });
}

// A rank holds these from forward to backward: of keys and values, only its own part.
TEST(KeysOnHost, AreHeldOnceByAllRanksTogether) {
  constexpr int64_t kTokens = 64, kKeys = 2 * 4 * kTokens * 16 * int64_t{sizeof(float)};
  for (const auto method : {kRing, kHeadTail, kGather})
    run_thread_ranks_with(4, {.backend = "shm"}, [&](int) {
      const SequenceParallel sequence(nullptr, method);
      const auto leaf = [] { return torch::randn({2, 4, kTokens, 16}).requires_grad_(); };
      const auto query = leaf(), key = leaf(), value = leaf();
      const auto attend_once = [&] { return torch::scaled_dot_product_attention(query, key, value); };
      static_cast<void>(attend_once());
      barrier();
      const CountedMemory counted;
      auto output = attend_once();
      EXPECT_GE(counted.counts->now, 3 * kKeys);  // including the output
      EXPECT_LT(counted.counts->now, 3.2 * kKeys) << static_cast<int>(method);
      output.reset();
      EXPECT_EQ(counted.counts->now, 0) << static_cast<int>(method);
    });
}

thread_local int blocks_before_the_error = -1;

TEST(KeysOnHost, OfACallThatFailedAreGivenBackAndLaterCallsAgree) {
  on_fault_point = [](const char* place) {
    if (std::string(place) == "block at hand" && blocks_before_the_error >= 0 && blocks_before_the_error-- == 0)
      throw std::runtime_error("failed on purpose");
  };
  for (const auto method : {kRing, kGather})
    run_thread_ranks_with(3, {.backend = "shm"}, [&](int rank) {
      const RingOfRanks ring{method, 3};
      const auto& program = programs()[2];
      const auto expected = results_of(program, ring);
      const auto longest = [&] {  // touches all pages of the slots through which gradients travel
        const SequenceParallel sequence(nullptr, ring.method);
        DealtTensors its(sequence);
        (attend(its.leaf(16)).sum() + attend(its.leaf(750)).sum()).backward();
      };
      for (int step = 0; step < 3; ++step) {
        static_cast<void>(results_of(program, ring));
        longest();
      }
      const auto before = what_is_there();
      for (const int blocks : {0, 2, 3, 7}) {
        if (rank == 1) blocks_before_the_error = blocks;
        try {
          const SequenceParallel sequence(nullptr, ring.method);
          DealtTensors its(sequence);
          const auto first = attend(its.leaf(16)), longer = attend(its.leaf(50 + blocks * 100));
          if (rank == 1) throw std::runtime_error("failed on purpose");
          (first.sum() + longer.sum()).backward();
          barrier();
          ADD_FAILURE() << "no error on rank " << rank;
        } catch (const std::exception&) {
          blocks_before_the_error = -1;
        }
        all_ranks().start_over();
        const auto results = results_of(program, ring);
        for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(results[i].equal(expected[i])) << blocks << ' ' << i;
        const auto now = what_is_there();
        EXPECT_LE(now.kilobytes, before.kilobytes + 8 * (now.count - before.count)) << "two pages for a segment";
      }
    });
  on_fault_point = nullptr;
}

}  // namespace
}  // namespace fsdp::test
