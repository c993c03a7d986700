#pragma once
/// \file
/// What the ranks of a pipeline send each other, in the order in which they send it.

#include <ATen/core/Tensor.h>
#include <fsdp/pipeline_schedule.h>
#include <fsdp/process_group.h>

#include <deque>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace fsdp::pipeline {

/// A tensor that one action makes and another one, on another rank, takes.
struct Message {
  PipelineAction made_by, taken_by;
  size_t made_at = 0;  ///< the place of `made_by` among its rank's actions
};

/// What rank `from` sends rank `to`, in the order of its actions. Both know it, so the n-th recv meets the n-th send.
std::vector<Message> messages_between(const PipelineSchedule& schedule, int from, int to);

/// What tells of a tensor: so many numbers, of which the last ones are its sizes.
constexpr size_t kHeaderNumbers = 16, kBeforeSizes = 3;

/// Sizes and dtype of a message.
struct Form {
  std::vector<int64_t> sizes;
  c10::ScalarType dtype = c10::kFloat;
  bool requires_grad = false;

  bool operator==(const Form&) const = default;
};

/// Forms of what each stage takes forward, by stage, micro-batch and slice.
using Forms = std::map<std::tuple<int, int, int>, Form>;

/// Carries the messages of one run of a schedule from and to this rank. One thread.
class Mailbox {
 public:
  /// All of them outlive it. Where `learns`, `forms` are found out: a header goes in front of each message of a
  /// forward.
  Mailbox(const ProcessGroup& group, Communicator& ranks, const PipelineSchedule& schedule, Forms& forms, bool learns);

  /// Sends what `action` made, if another rank takes it, and keeps it until that rank has it. Throws UsageError if it
  /// has another form than the receiver knows of.
  void send(const PipelineAction& action, const at::Tensor& made);
  /// Waits for what `action` takes from another rank. Undefined: a gradient that nobody computes.
  at::Tensor receive(const PipelineAction& action);
  /// Whether what the action's stage takes forward needs a gradient; it was received.
  bool needs_gradient(const PipelineAction& action) const { return form_of(action).requires_grad; }
  /// Waits until everything that was sent has arrived.
  void finish();

 private:
  struct Sent {
    size_t taken_at;
    at::Tensor tensor;
    std::shared_ptr<Work> work;
  };
  struct Peer {
    std::vector<Message> incoming = {};
    size_t received = 0;
    at::Tensor next = {};  // what the next message is received into, once its recv was called
    std::shared_ptr<Work> receiving = {};
    std::deque<Sent> sent = {};
  };

  const Form& form_of(const PipelineAction& action) const;
  void begin_to_receive(int rank, Peer& peer);
  Form receive_header(int rank, const PipelineAction& action);

  const ProcessGroup& group_;
  Communicator& ranks_;
  const PipelineSchedule& schedule_;
  Forms& forms_;
  const bool learns_;
  std::map<int, Peer> peers_;
  std::vector<std::pair<PipelineAction, at::Tensor>> received_early_;
};

}  // namespace fsdp::pipeline
