// Tests of calls that only one rank makes. The errors of all ranks name the call, and its subject.

#include <fsdp/async_save.h>
#include <fsdp/clip_grad.h>
#include <fsdp/collectives.h>
#include <fsdp/deferred_init.h>
#include <fsdp/grad_scaler.h>
#include <fsdp/join.h>
#include <fsdp/metrics.h>
#include <fsdp/serialize.h>
#include <fsdp/set_strategy.h>
#include <fsdp/state_dict.h>
#include <fsdp/sync_batch_norm.h>
#include <fsdp/trace.h>
#include <fsdp/trainer.h>

#include "misuse/net.h"
#include "state/files.h"

namespace fsdp::test {
namespace {

namespace nn = torch::nn;

// State of one rank: a layer after one training step, with its gradients, and a checkpoint of it.
struct Rank {
  nn::Linear linear = linear_alike();
  Group model = fully_shard(*linear);
  optim::AdamW optimizer{linear->parameters(), torch::optim::AdamWOptions(0.1)};
  GradScaler scaler;
  AsyncSave saving;
  Trace trace;
  SyncBatchNorm norm{nn::BatchNormOptions(2)};
  std::string folder;

  explicit Rank(std::string own_folder) : folder(std::move(own_folder)) {
    {
      const ForwardScope scope(model);
      scaler.scale(linear->forward(torch::ones({1, 4})).sum()).backward();
    }
    optimizer.step();
    norm->forward(torch::ones({4, 2}));
    save_checkpoint(folder, model, &optimizer);
    save_safetensors(folder + "/whole", model);
    save(model, folder + "/model.pt");
    save(optimizer, folder + "/optimizer.pt");
    async_save_checkpoint(saving, folder + "/async", model);
  }
};

struct Call {
  /// Text after the name of the collective in errors that say what rank 0 runs. FOLDER stands for the folder.
  std::string text;
  std::function<void(Rank&)> act;
  /// Backend for the call; if empty, the backend under test.
  std::string backend = {};
  /// Timeout of the process group. Other ranks notice a collective in a queue of its own only after the timeout.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
};

const std::vector<Call>& calls() {
  static const std::vector<Call> all{
      {"save_checkpoint of FOLDER/a'", [](Rank& r) { save_checkpoint(r.folder + "/a", r.model); }},
      {"async_save_checkpoint of FOLDER/a'",
       [](Rank& r) {
         AsyncSave saving;
         async_save_checkpoint(saving, r.folder + "/a", r.model);
       }},
      {"AsyncSave::wait of FOLDER/async'", [](Rank& r) { r.saving.wait(); }},
      {"load_checkpoint of FOLDER'", [](Rank& r) { load_checkpoint(r.folder, r.model); }},
      {"save_safetensors of FOLDER/b: weight'", [](Rank& r) { save_safetensors(r.folder + "/b", r.model); }},
      {"load_safetensors of FOLDER/whole'", [](Rank& r) { load_safetensors(r.folder + "/whole", r.model); }},
      {"save of FOLDER/c: weight'", [](Rank& r) { save(r.model, r.folder + "/c"); }},
      {"load of FOLDER/model.pt'", [](Rank& r) { load(r.model, r.folder + "/model.pt"); }},
      {"save of FOLDER/d'", [](Rank& r) { save(r.optimizer, r.folder + "/d"); }},
      {"load of FOLDER/optimizer.pt'", [](Rank& r) { load(r.optimizer, r.folder + "/optimizer.pt"); }},
      {"full_state_dict of weight'", [](Rank& r) { return full_state_dict(r.model); }},
      {"summon_full_params of Linear'", [](Rank& r) { static_cast<void>(summon_full_params(r.model)); }},
      {"summon_full_params of Linear'",
       [](Rank& r) { static_cast<void>(summon_full_params(r.model, {.rank0_only = true})); }},
      // Over shared memory, unshard() waits for no rank.
      {"unshard of Linear'", [](Rank& r) { r.model.unshard().wait(); }, "gloo"},
      {"load_full_state_dict'", [](Rank& r) { load_full_state_dict({}, r.model); }},
      {"full_tensor of weight'", [](Rank& r) { return full_tensor(r.linear->weight); }},
      {"full_grad of bias'", [](Rank& r) { return full_grad(r.linear->bias); }},
      {"clip_grad_norm_ of Linear to 1, norm 2'", [](Rank& r) { clip_grad_norm_(r.model, 1); }},
      {"norm 2 of 1 tensors'", [](Rank& r) { return norm({r.linear->weight}); }},
      {"sum of 1 tensors'", [](Rank& r) { return sum({r.linear->weight}); }},
      {"LBFGS::step'",
       [](Rank& r) {
         optim::LBFGS optimizer(r.linear->parameters());
         optimizer.step([] { return torch::ones({}); });
       }},
      {"set_strategy of Linear to kShardGradOp",
       [](Rank& r) { set_strategy(r.model, r.optimizer, Strategy::kShardGradOp); }},
      {"fully_shard Linear: ", [](Rank&) { fully_shard(*linear_alike()); }},
      {"initialize of Linear: ", [](Rank& r) { initialize(r.model, [] {}); }},
      {"join of Linear, ", [](Rank& r) { join(r.model, true, [] {}); }},
      {"Trace::write of FOLDER/t'", [](Rank& r) { r.trace.write(r.folder + "/t"); }},
      {"mean'", [](Rank&) { return mean(1); }},
      {"RunningSums::over_ranks'", [](Rank&) { static_cast<void>(RunningSums(1, at::kCPU).over_ranks()); }},
      {"StepReport::mean_loss'", [](Rank&) { static_cast<void>(StepReport{.loss = torch::ones({})}.mean_loss()); }},
      {"GradScaler::unscale_ by the scale ", [](Rank& r) { r.scaler.unscale_(r.optimizer); }},
      {"Float [3]'", [](Rank&) { static_cast<void>(all_reduce(torch::ones({3}))); }},
      {"statistics of SyncBatchNorm'",
       [](Rank& r) { r.norm->forward(torch::ones({4, 2})); },
       {},
       std::chrono::seconds(4)},
  };
  return all;
}

TEST(AloneOnOneRank, EachCallIsNamedOnAllRanks) {
  for (const auto& [text, act, backend, timeout] : calls()) {
    SCOPED_TRACE(text);
    const state::TemporaryFolder folder;
    auto expected = " of '" + text;
    if (const auto at = expected.find("FOLDER"); at != expected.npos) expected.replace(at, 6, folder.path());
    run_thread_ranks_with(2, {.timeout = timeout, .backend = backend}, [&, &call = act](int r) {
      Rank rank(folder.path());
      expect_error<Mismatch>(
          [&] {
            if (r == 0) return call(rank);
            default_process_group()->communicator().barrier({"elsewhere", {}})->wait();
          },
          {"rank 0", expected, "rank 1", "barrier of 'elsewhere'"});
      rank.saving = {};
    });
  }
}

}  // namespace
}  // namespace fsdp::test
