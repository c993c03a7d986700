#include <fsdp/async_save.h>
#include <fsdp/error.h>

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <future>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

#include "api/group_view.h"
#include "comm/core/fault_point.h"
#include "state/checkpoint.h"
#include "state/checkpoint_part.h"
#include "state/format/part_files.h"
#include "state/shared_step.h"
#include "state/stages.h"

namespace fsdp {
namespace {

using namespace state;

constexpr auto kLongestEnd = std::chrono::minutes(10);
constexpr int kNiceness = 10;

}  // namespace

struct AsyncSaving {
  // The work that the background thread does for one save.
  struct Job {
    std::string path;
    CheckpointPart part = {};
    std::optional<PartWriter> writer = std::nullopt;
    /// Set if all ranks see the same disk and this rank completes the checkpoint.
    std::optional<SharedStep> step = std::nullopt;
    /// `written` gets the text of this rank's manifest part when the rank's files are on disk. `completed` is fulfilled
    /// when the checkpoint is complete; on a rank that does not complete it, right after `written`.
    std::promise<std::string> written = {};
    std::promise<void> completed = {};
  };

  static void wait(AsyncSave& in, const Ranks& ranks);
  static void begin(AsyncSave& saving, const std::string& folder, ModelTensors tensors,
                    const torch::optim::Optimizer* optimizer, const SaveOptions& options);
};

namespace {

using Job = AsyncSaving::Job;

// Waits until all ranks have written their files, then completes the checkpoint. Throws if a rank's writer ended
// without writing its files.
void complete(SharedStep step, int world_size, const std::stop_token& stop) {
  JoinedManifest all;
  for (int rank = 0; rank < world_size; ++rank) all.add(await_part(step.path(), rank, stop), whose_part(rank));
  remove_parts(step.path(), world_size);
  step.complete_here(all.take());
}

template <class Result>
void keep(std::promise<Result>& promise, const auto& action) {
  try {
    if constexpr (std::is_void_v<Result>) {
      action();
      promise.set_value();
    } else {
      promise.set_value(action());
    }
  } catch (...) {
    promise.set_exception(std::current_exception());
  }
}

// Writes this rank's files and, if the job has a step, completes the checkpoint. Each action moves the locks that it
// needs out of the job, so they are released before the action's promise is fulfilled.
void run(const std::stop_token& stop, Job& job) {
  ::setpriority(PRIO_PROCESS, 0, kNiceness);  // lowers the priority of this thread only; an error does no harm
  const auto world_size = static_cast<int>(job.part.manifest.world_size);
  keep(job.written, [&] {
    const auto writer = std::move(*job.writer);
    fault_point("part writing");
    auto text = write(job.path, std::move(job.part));
    writer.leave(text);
    fault_point("part written");
    return text;
  });
  keep(job.completed, [&] {
    if (!job.step) return;
    complete(std::move(*job.step), world_size, stop);
    fault_point("checkpoint complete");
  });
}

// Starts a thread that waits for its job and runs it. If a rank cannot begin the save, every rank destroys the promise
// of its job, and its thread ends.
std::jthread begin_thread(std::future<Job> job) {
  return std::jthread([job = std::move(job)](const std::stop_token& stop) mutable {
    std::optional<Job> own;
    try {
      own.emplace(job.get());
    } catch (const std::future_error&) {
      return;
    }
    run(stop, *own);
  });
}

}  // namespace

struct AsyncSave::InFlight {
  Ranks ranks;
  std::future<std::string> written;
  std::future<void> completed;
  /// Set if the checkpoint is on several disks. No rank sees the files of all ranks then, so AsyncSave::wait completes
  /// the checkpoint.
  std::optional<SharedStep> spread = std::nullopt;
  /// The background thread. The destructor requests a stop, so that the thread stops waiting for other ranks, and joins
  /// the thread.
  std::jthread thread = {};
  const pid_t process = getpid();
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
  // A forked child does not have the background thread, and the files belong to its parent.
  if (getpid() != in_flight_->process) {
    static_cast<void>(in_flight_.release());
    return;
  }
  in_flight_->completed.wait_for(kLongestEnd);
  in_flight_->thread.request_stop();
  try {
    in_flight_->written.get();
    in_flight_->completed.get();
    if (in_flight_->spread) throw Error("only wait() completes a checkpoint on several disks");
  } catch (const std::exception& error) {
    TORCH_WARN(in_flight_->ranks.where(),
               "this AsyncSave was destroyed without wait(), and its checkpoint is not complete: ", error.what());
  }
}

void AsyncSave::wait() {
  if (in_flight_) AsyncSaving::wait(*this, in_flight_->ranks.during("AsyncSave::wait"));
}

void AsyncSaving::wait(AsyncSave& in, const Ranks& ranks) {
  const auto saving = std::move(in.in_flight_);
  // These are two collectives, so that no rank waits for rank 0's thread before all ranks have written their rows.
  std::string part;
  ranks.all_do([&] { part = saving->written.get(); });
  if (!saving->spread) return ranks.all_do([&] { saving->completed.get(); });
  if (saving->spread->completes()) remove_parts(saving->spread->path(), ranks.world_size());
  saving->spread->complete(part, ranks);
}

void AsyncSaving::begin(AsyncSave& saving, const std::string& folder, ModelTensors tensors,
                        const torch::optim::Optimizer* optimizer, const SaveOptions& options) {
  const Ranks ranks(tensors.ranks, kAsyncSave, folder);
  require_savable(tensors, optimizer, options, ranks.where());
  join_stages(tensors, optimizer, ranks);
  if (saving.in_flight_) wait(saving, ranks);
  SharedStep step(options, ranks);
  Job job{.path = step.path()};
  auto in_flight = std::make_unique<AsyncSave::InFlight>(AsyncSave::InFlight{
      .ranks = ranks, .written = job.written.get_future(), .completed = job.completed.get_future()});
  std::promise<Job> given;  // an exception destroys `given` before `in_flight`, so the thread ends
  auto own = part_of(tensors, optimizer, options, ranks);
  // If one of these steps fails on a rank, all ranks throw at the end of step.write and no rank continues.
  step.write(ranks, [&] {
    add_random_states(own, tensors, options);
    job.part = copied(std::move(own));
    manifest_text(job.part.manifest);  // throws for options that cannot be written as JSON
    job.writer.emplace(job.path, ranks.rank());
    in_flight->thread = begin_thread(given.get_future());
  });
  if (step.is_spread())
    in_flight->spread.emplace(std::move(step));
  else if (step.completes())
    job.step.emplace(std::move(step));
  given.set_value(std::move(job));
  saving.in_flight_ = std::move(in_flight);
}

void state::async_save(AsyncSave& saving, const std::string& folder, ModelTensors tensors,
                       const torch::optim::Optimizer* optimizer, const SaveOptions& options) {
  AsyncSaving::begin(saving, folder, std::move(tensors), optimizer, options);
}

void async_save_checkpoint(AsyncSave& saving, const std::string& folder, const Group& model,
                           const torch::optim::Optimizer* optimizer, const SaveOptions& options) {
  async_save(saving, folder, tensors_of(*GroupView::of(model).tree, kAsyncSave, Parts::kTaken), optimizer, options);
}
void async_save_checkpoint(AsyncSave& saving, const std::string& folder, torch::nn::Module& model,
                           const torch::optim::Optimizer* optimizer, const SaveOptions& options) {
  async_save(saving, folder, tensors_of(*module_tree(model), kAsyncSave, Parts::kTaken), optimizer, options);
}

}  // namespace fsdp
