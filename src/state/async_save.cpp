#include <fsdp/async_save.h>

#include <sys/resource.h>

#include <chrono>
#include <exception>
#include <future>
#include <optional>
#include <thread>
#include <utility>

#include "api/group_view.h"
#include "comm/core/fault_point.h"
#include "state/checkpoint_part.h"
#include "state/format/checkpoint_folder.h"
#include "state/format/part_files.h"

namespace fsdp {
namespace {

using namespace state;

constexpr char kOperation[] = "async_save_checkpoint";
constexpr auto kLongestEnd = std::chrono::minutes(10);
constexpr int kNiceness = 10;

}  // namespace

struct AsyncSaving {
  // What rank 0 does beyond writing its rows.
  struct Completion {
    std::string folder;
    SaveOptions options;
    FolderLock lock;
  };

  struct Job {
    std::string partial;
    CheckpointPart part = {};
    std::optional<PartWriter> writer = std::nullopt;
    std::optional<Completion> completion = std::nullopt;
    /// Of this rank's rows, and on rank 0 of the checkpoint.
    std::promise<void> written = {}, completed = {};
  };

  static void begin(AsyncSave& saving, const std::string& folder, const ModuleNode& tree,
                    const torch::optim::Optimizer* optimizer, const SaveOptions& options);
};

namespace {

using Completion = AsyncSaving::Completion;
using Job = AsyncSaving::Job;

// When all ranks have written, or one has not.
void complete(const std::string& partial, int world_size, const Completion& completion, const std::stop_token& stop) {
  const auto& [folder, options, lock] = completion;
  try {
    std::vector<std::string> parts;
    for (int rank = 0; rank < world_size; ++rank) parts.push_back(await_part(partial, rank, stop));
    remove_parts(partial, world_size);
    complete_step(folder, manifest_of(parts), options.keep, lock);
  } catch (...) {
    abandon_step(folder, options.step, lock);
    throw;
  }
}

void keep(std::promise<void>& promise, const auto& action) {
  try {
    action();
    promise.set_value();
  } catch (...) {
    promise.set_exception(std::current_exception());
  }
}

// What is moved into an action is gone, locks too, when its promise is kept.
void run(const std::stop_token& stop, Job& job) {
  ::setpriority(PRIO_PROCESS, 0, kNiceness);  // of this thread; 0 or an error, which changes nothing
  const auto world_size = static_cast<int>(job.part.manifest.world_size);
  keep(job.written, [&] {
    const auto writer = std::move(*job.writer);
    fault_point("part writing");
    writer.leave(write(job.partial, std::move(job.part)));
    fault_point("part written");
  });
  keep(job.completed, [&] {
    if (!job.completion) return;
    complete(job.partial, world_size, Completion(std::move(*job.completion)), stop);
    fault_point("checkpoint complete");
  });
}

}  // namespace

struct AsyncSave::InFlight {
  Ranks ranks;
  std::future<void> written, completed;
  /// When it goes, it is asked not to wait for other ranks any more.
  std::jthread thread = {};
};

AsyncSave::AsyncSave() noexcept = default;
AsyncSave::AsyncSave(AsyncSave&&) noexcept = default;
AsyncSave& AsyncSave::operator=(AsyncSave&& other) noexcept {
  const AsyncSave ended(std::move(*this));
  in_flight_ = std::move(other.in_flight_);
  return *this;
}

AsyncSave::~AsyncSave() {
  if (!in_flight_) return;
  in_flight_->completed.wait_for(kLongestEnd);
  in_flight_->thread.request_stop();
  try {
    in_flight_->written.get();
    in_flight_->completed.get();
  } catch (const std::exception& error) {
    TORCH_WARN(in_flight_->ranks.where(kOperation),
               "the checkpoint was not written, and wait() was not called: ", error.what());
  }
}

void AsyncSave::wait() {
  if (!in_flight_) return;
  const auto saving = std::move(in_flight_);
  // Two meetings: rank 0 must not wait for the rows of a rank that is gone or stands still.
  for (auto* step : {&saving->written, &saving->completed})
    saving->ranks.together(kOperation, [&]() -> std::string {
      step->get();
      return {};
    });
}

void AsyncSaving::begin(AsyncSave& saving, const std::string& folder, const ModuleNode& tree,
                        const torch::optim::Optimizer* optimizer, const SaveOptions& options) {
  const auto tensors = state::tensors_of(tree, kOperation);
  const Ranks ranks(tensors.ranks);
  require_savable(tensors, optimizer, options, ranks.where(kOperation));
  saving.wait();
  Job job;
  job.partial = ranks.together(kOperation, [&]() -> std::string {
    if (ranks.rank() > 0) return {};
    job.completion = Completion{folder, options, FolderLock(folder)};
    return begin_step(folder, options.step, job.completion->lock);
  })[0];
  try {
    ranks.together(kOperation, [&]() -> std::string {
      job.part = copied(part_of(tensors, optimizer, options, ranks));
      manifest_text(job.part.manifest);  // throws for options that no file can have
      job.writer.emplace(job.partial, ranks.rank());
      return {};
    });
  } catch (...) {
    if (job.completion) abandon_step(folder, options.step, job.completion->lock);
    throw;
  }
  auto in_flight = std::make_unique<AsyncSave::InFlight>(ranks, job.written.get_future(), job.completed.get_future());
  in_flight->thread = std::jthread([job = std::move(job)](const std::stop_token& stop) mutable { run(stop, job); });
  saving.in_flight_ = std::move(in_flight);
}

void async_save_checkpoint(AsyncSave& saving, const std::string& folder, const Group& model,
                           const torch::optim::Optimizer* optimizer, const SaveOptions& options) {
  AsyncSaving::begin(saving, folder, *GroupView::of(model).tree, optimizer, options);
}
void async_save_checkpoint(AsyncSave& saving, const std::string& folder, torch::nn::Module& model,
                           const torch::optim::Optimizer* optimizer, const SaveOptions& options) {
  AsyncSaving::begin(saving, folder, *module_tree(model), optimizer, options);
}

}  // namespace fsdp
