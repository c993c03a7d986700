// The backward half of RankState: graph tasks, and when a group is reduced.

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <mutex>

#include "comm/core/check.h"
#include "comm/core/fault_point.h"
#include "memory/block.h"
#include "runtime/compat.h"
#include "runtime/param_group.h"
#include "runtime/rank_state.h"
#include "runtime/scope.h"

namespace fsdp::runtime {
namespace {

constexpr size_t kReductionsInFlight = 2;
// The bytes that groups free in a backward from which on the pages go back to the system. Fewer stay for the next step.
constexpr int64_t kManyBytes = int64_t{64} << 20;

// Whether the current graph task will accumulate a gradient into the parameter.
bool expects_gradient(const ParamSlot& slot) {
  auto parameter = slot.tensor();
  if (!parameter.defined() || !parameter.requires_grad()) return false;
  auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  if (!accumulator) return false;
  const auto* inputs = torch::autograd::get_current_graph_task_exec_info();
  if (inputs != nullptr && !inputs->empty()) {
    auto it = inputs->find(accumulator.get());
    return it != inputs->end() && it->second.needed_;
  }
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  return nodes == nullptr || nodes->contains(accumulator.get());
}

// autograd::grad and backward(inputs) leave parameters outside their inputs alone.
bool is_restricted_to_inputs() {
  const auto* inputs = torch::autograd::get_current_graph_task_exec_info();
  return inputs != nullptr && !inputs->empty();
}

bool trains(ParamGroup& group) {
  return std::any_of(group.slots().begin(), group.slots().end(),
                     [](const ParamSlot& slot) { return slot.requires_grad(); });
}

// Of whole gradients on the CPU that have arrived.
int64_t gradient_bytes(ParamGroup& group) {
  int64_t bytes = 0;
  for (const auto& slot : group.slots())
    if (slot.has_arrived && slot.rows_tensor.is_cpu())
      bytes += slot.numel() * static_cast<int64_t>(c10::elementSize(slot.dtype()));
  return bytes;
}

// Of whole parameters on the CPU.
int64_t parameter_bytes(ParamGroup& group) {
  int64_t bytes = 0;
  for (const auto& flat : group.flats())
    if (flat.device().is_cpu()) bytes += static_cast<int64_t>(flat.whole_bytes());
  return bytes;
}

void tidy_pages(int64_t gradient_bytes, int64_t parameter_bytes) {
  static std::once_flag kept;
  if (gradient_bytes >= kManyBytes)
    memory::return_free_pages();
  else if (gradient_bytes > 0 && parameter_bytes < kManyBytes)
    std::call_once(kept, memory::keep_free_pages);
}

Turn turn_of(const ParamGroup& group) {
  const bool is_last = group.policy.reduces_unused;
  return {is_last, is_last ? 0 : group.first_read, group.id()};
}

// Whether this backward reduces the group, on every rank alike: forward reached it, or gradients came all the same.
bool takes_part(ParamGroup& group, bool restricted) {
  if (!group.policy.requires_gradient_sync || !trains(group)) return false;
  if (group.reducer().expects_any()) return true;
  // Gradients that wait since a backward without synchronisation wait on.
  return !restricted && (group.reducer().has_gradients() || group.first_read != 0 || group.policy.reduces_unused);
}

// Other ranks may wait for what this thread does not do.
[[noreturn]] void refuse_turn(const ParamGroup& group, const char* operation, const char* what_another_does) {
  const auto error = c10::str(
      "another thread ", what_another_does, " '", group.name(),
      "' at the moment. Threads that train one model take turns: begin when the other one's backward has ended. "
      "Then call reset_iter_state() on the model on every rank");
  group.process_group().communicator().fail(operation, error);
  throw UsageError(group.where(operation) + error);
}

// Held on to while a thread waits: others may drop the model meanwhile. Null if nobody has it any more.
std::shared_ptr<ParamGroup> keep(ParamGroup* group) { return group ? group->weak_from_this().lock() : nullptr; }

// Whether the group's whole parameters go when its last backward has ended.
bool ends_sharded(const ParamGroup& group) {
  if (group.stays_after_backward()) return false;
  return !group.is_inside() || (group.pins == 0 && !group.stays_after_forward());
}

// Whether no other backward goes through the group. False also after reset_iter_state().
bool is_last(const BackwardTask& task, const ParamGroup& group) {
  return group.open_tasks.size() == 1 && group.open_tasks.front() == task.id;
}

}  // namespace

bool RankState::enter_backward(ParamGroup& group) {
  int id = torch::autograd::get_current_graph_task_id();
  TORCH_INTERNAL_ASSERT(id != -1, "enter_backward outside a backward");
  if (std::find(group.open_tasks.begin(), group.open_tasks.end(), id) != group.open_tasks.end()) return false;
  for (const auto& [other, task] : tasks_)
    if (task->runs.expired()) require(false, group.where("backward"), kUnfinishedBackward);
  // A backward inside another one enters groups one by one: the outer one has entered all of their scope.
  auto covered = group.scope && group.open_tasks.empty() ? group.scope->groups : std::vector<GroupId>{group.id()};
  for (GroupId member_id : covered)
    if (const auto* member = this->group(member_id)) {
      if (member->local_rows_depth > 0)
        require(false, member->where("backward"), "a fsdp::LocalRows is open on '", member->name(),
                "': close it before backward");
      if (member->openings > 0) refuse_turn(*member, "backward", "opens a forward scope on");
      require_no_backward_elsewhere(*member, "backward");
    }
  auto& task = tasks_[id];
  if (!task) {
    fault_point("backward open");
    const auto token = std::make_shared<char>();
    task = std::make_shared<BackwardTask>(BackwardTask{.id = id,
                                                       .restricted = is_restricted_to_inputs(),
                                                       .groups = {},
                                                       .turns = {},
                                                       .runs = token,
                                                       .thread = std::this_thread::get_id()});
    torch::autograd::Engine::get_default_engine().queue_callback(
        [self = group.rank_state_ptr(), id, token] { self->end_task(id); });
  }
  if (group.scope)
    if (auto* root = this->group(group.scope->root); root != nullptr && root->open_tasks.empty())
      root->backward_order.start();
  for (GroupId member_id : covered) {
    auto* member = this->group(member_id);
    if (member == nullptr) continue;
    if (std::find(member->open_tasks.begin(), member->open_tasks.end(), id) != member->open_tasks.end()) continue;
    member->enter();
    if (member->open_tasks.empty()) {
      member->resume_reading();
      member->park_gradients();
      member->reducer().expect(expects_gradient, /*may_recompute=*/!task->restricted);
    }
    member->open_tasks.push_back(id);
    task->groups.push_back(member_id);
    task->turns.insert(turn_of(*member));
  }
  return true;
}

// A backward inside another one runs on the same thread. On the CPU nothing keeps two threads from changing the `.grad`
// of one parameter at once; a device has one thread for all.
void RankState::require_no_backward_elsewhere(const ParamGroup& group, const char* operation) const {
  if (!group.is_on_cpu()) return;
  for (const int id : group.open_tasks) {
    const auto task = tasks_.find(id);
    if (task == tasks_.end() || task->second->runs.expired()) continue;
    if (task->second->thread != std::this_thread::get_id()) refuse_turn(group, operation, "runs a backward through");
  }
}

void RankState::gradient_arrived(ParamGroup& group, size_t slot, at::Tensor gradient) {
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard own_operators(kShardedKey);
  enter_backward(group);
  const int outermost = group.open_tasks.front();
  group.reducer().add(slot, std::move(gradient),
                      /*from_inside=*/torch::autograd::get_current_graph_task_id() != outermost);
  group.process_group().reductions().progress();  // earlier groups' gradients go the sooner
  if (group.reducer().is_complete()) advance_reductions(outermost, group.id());
}

// Turns stay as they are while a backward is open: by then some ranks may have started groups that others lack a
// gradient of.
void RankState::note_first_read(ParamGroup& group) {
  if (group.first_read == 0 && group.open_tasks.empty()) group.first_read = ++reads_;
}

// The group whose turn it is, if it is complete. Who takes no part by then may do so at the end. Forwards run again in
// the reverse order, so what has not been computed again by the time that a later group, `completed`, is complete will
// not be.
ParamGroup* RankState::next_reduction(BackwardTask& task, GroupId completed) {
  const auto* last = this->group(completed);
  const bool passes = last != nullptr && !last->reduced_in_task;
  for (; !task.turns.empty(); task.turns.erase(task.turns.begin())) {
    auto* group = this->group(task.turns.begin()->group);
    if (group == nullptr || group->reduced_in_task || !takes_part(*group, task.restricted)) continue;
    const bool is_passed = passes && group->reducer().awaits_recomputation_only();
    const bool is_ready = group->reducer().is_complete() || is_passed;
    return is_ready && !group->policy.reduces_unused ? group : nullptr;
  }
  return nullptr;
}

// Starts every complete group whose turn it is.
void RankState::advance_reductions(int id, GroupId completed) {
  while (true) {
    auto task = tasks_.find(id);
    const auto group = keep(task == tasks_.end() ? nullptr : next_reduction(*task->second, completed));
    if (!group) return;
    // While it waits, another thread may start this group.
    if (!finish_oldest_reduction()) start_reduction(*group);
  }
}

// Returns whether there were as many reductions in flight as there may be.
bool RankState::finish_oldest_reduction() {
  if (reducing_.size() < kReductionsInFlight) return false;
  auto oldest = reducing_.front();
  reducing_.pop_front();
  if (const auto waiting = keep(group(oldest))) waiting->reducer().finish();
  return true;
}

void RankState::start_reduction(ParamGroup& group) {
  group.reduced_in_task = true;
  group.reducer().finish();
  group.reducer().start();
  std::erase(reducing_, group.id());
  reducing_.push_back(group.id());
  if (!group.stays_after_backward() && !group.is_in_scope()) group.free_whole();
}

// At the end of the outermost graph task: what was not reduced yet, then waits for all.
void RankState::reduce_rest(const BackwardTask& task) {
  std::set<Turn> turns;
  for (GroupId id : task.groups)
    if (auto* member = this->group(id)) turns.insert(turn_of(*member));
  for (const auto& turn : turns) {
    const auto group = keep(this->group(turn.group));
    if (!group || !is_last(task, *group) || !takes_part(*group, task.restricted)) continue;
    if (group->reduced_in_task && !group->reducer().has_gradients()) continue;
    while (finish_oldest_reduction()) {
    }
    if (is_last(task, *group)) start_reduction(*group);
  }
  for (GroupId id : task.groups)
    if (const auto member = keep(group(id)); member && is_last(task, *member)) {
      member->reducer().finish();
      std::erase(reducing_, id);
    }
}

void RankState::end_task(int id) {
  std::lock_guard lock(mutex);
  const auto found = tasks_.find(id);
  if (found == tasks_.end()) return;  // reset_iter_state() came first
  const auto task = found->second;    // also if it comes while this thread waits
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard own_operators(kShardedKey);
  reduce_rest(*task);
  if (tasks_.erase(id) == 0) return;
  std::exception_ptr error;  // the first one; every group is left all the same
  int64_t gradients = 0, parameters = 0;
  for (GroupId member_id : task->groups) {
    auto* member = group(member_id);
    if (member == nullptr) continue;
    gradients += gradient_bytes(*member);
    parameters += parameter_bytes(*member);
    std::erase(member->open_tasks, id);
    if (member->open_tasks.empty()) {
      member->reduced_in_task = false;
      member->reducer().expect_nothing();
      try {
        member->unpark_gradients();
      } catch (...) {
        if (!error) error = std::current_exception();
      }
    }
    member->leave();
    // In a scope that goes on too: which gradients had all arrived, so that their groups were freed, differs by rank.
    if (member->open_tasks.empty() && ends_sharded(*member)) member->free_whole();
    if (!member->is_inside()) member->leave_reading();
  }
  if (tasks_.empty()) tidy_pages(gradients, parameters);
  fault_point("backward closed");
  if (error) std::rethrow_exception(error);
}

void RankState::reset_backward() {
  tasks_.clear();
  reducing_.clear();
  current_ = 0;
  // Ranks that got unequally far, in whatever model, would predict differently.
  for (const auto& [id, group] : groups_) group->forward_order = group->backward_order = {};
}

}  // namespace fsdp::runtime
