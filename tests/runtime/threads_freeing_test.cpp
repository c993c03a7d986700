// Tests of a thread that frees whole parameters, or gives them other memory, while another thread of the same rank uses
// them.

#include <fsdp/scopes.h>
#include <fsdp/to.h>
#include <gmock/gmock.h>
#include <torch/library.h>

#include <atomic>
#include <optional>
#include <thread>

#include "api/group_view.h"
#include "comm/core/fault_point.h"
#include "runtime/param_group.h"
#include "support/small_net.h"

namespace fsdp::test {
namespace {

// An event that happens once.
class Happening {
 public:
  void note() {
    has_happened_.test_and_set();
    has_happened_.notify_all();
  }
  void wait() const { has_happened_.wait(false); }

 private:
  std::atomic_flag has_happened_;
};

// The events of one rank's two threads. In one thread an operator begins to read. `goes_on` happens when the other
// thread has freed what the operator reads, or waits to do so.
struct Reading {
  Happening begins, goes_on;
};
thread_local Reading* t_reading = nullptr;

at::Tensor read_late(const at::Tensor& x) {
  t_reading->begins.note();
  t_reading->goes_on.wait();
  return x.sum();
}

TORCH_LIBRARY(fsdp_test_freeing, library) {
  library.def("read_late(Tensor x) -> Tensor");
  library.impl("read_late", c10::DispatchKey::CPU, &read_late);
}

at::Tensor call_read_late(const at::Tensor& x) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("fsdp_test_freeing::read_late", "")
                             .typed<at::Tensor(const at::Tensor&)>();
  return op.call(x);
}

using Model = Sharded<torch::nn::Linear>;

TEST(Threads, ThatFreeWholeParametersWaitForAnOperatorOfAnotherThreadThatReadsThem) {
  struct Case {
    const char* name;
    bool is_summoned;
    void (*free)(Model& model, std::optional<SummonFullParams>& whole);
  };
  const Case cases[]{{"reshard", false, [](Model& model, auto&) { model.reshard(); }},
                     {"reset_iter_state", false, [](Model& model, auto&) { model.reset_iter_state(); }},
                     {"the end of a summon", true, [](Model&, auto& whole) { whole.reset(); }}};
  on_fault_point = [](const char* place) {
    if (t_reading != nullptr && place == std::string_view("waiting for operators")) t_reading->goes_on.note();
  };
  for (const auto& [name, is_summoned, free] : cases) {
    SCOPED_TRACE(name);
    run_thread_ranks(2, [&, is_summoned = is_summoned, free = free](int) {
      Model model = fully_shard(build_alike([] { return torch::nn::Linear(30, 40); }));
      const double expected = full_tensor(model->weight).sum().item<double>();
      std::optional<SummonFullParams> whole;
      if (is_summoned) whole.emplace(model);
      Reading reading;
      double found = 0;
      auto reader = thread_of_rank([&] {
        t_reading = &reading;
        const torch::NoGradGuard no_grad;
        std::optional<ForwardScope> scope;
        if (!is_summoned) scope.emplace(model);
        EXPECT_NO_THROW(found = call_read_late(model->weight).item<double>());
        reading.begins.note();  // without this the other thread would wait for ever if the operator threw
      });
      reading.begins.wait();
      t_reading = &reading;
      free(model, whole);
      reading.goes_on.note();
      t_reading = nullptr;
      reader.join();
      EXPECT_EQ(found, expected);
    });
  }
  on_fault_point = nullptr;
}

TEST(Threads, ReadStatisticsAndNamesWhileAnotherOneMovesTheModel) {
  run_thread_ranks(1, [&](int) {
    Model model = fully_shard(build_alike([] { return torch::nn::Linear(30, 40); }));
    std::atomic<bool> is_over = false;
    auto reader = thread_of_rank([&] {
      while (!is_over) {
        EXPECT_EQ(model.stats().parameter_numel, 40 * 31);
        EXPECT_EQ(model.name(), "Linear");
        EXPECT_EQ(model.world_size(), 1);
      }
    });
    for (int i = 0; i < 200; ++i) to(model, i % 2 == 0 ? torch::kDouble : torch::kFloat);
    is_over = true;
    reader.join();
  });
}

// LocalRows closes in a destructor, and a destructor that throws would end the program.
TEST(LocalRowsThatClose, CountAsWrittenWhateverHappenedMeanwhile) {
  run_thread_ranks_with(2, {.backend = "shm"}, [](int) {
    const Model model = fully_shard(build_alike([] { return torch::nn::Linear(30, 40); }));
    auto& group = *param_groups(model).front();
    std::optional<LocalRows> rows(model);
    const auto version = group.version();
    group.begin_scope();  // opens a scope of this group alone, which no public call does
    rows.reset();
    EXPECT_GT(group.version(), version);
    group.end_read();
    group.cancel_scope();
    group.end_read();
  });
}

}  // namespace
}  // namespace fsdp::test
