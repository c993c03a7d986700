#pragma once
/// \file
/// The tensors that the ranks of a pipeline send each other, and the order in which they send them.

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

/// A tensor that an action on one rank makes and an action on another rank takes.
struct Message {
  PipelineAction made_by, taken_by;
  size_t made_at = 0;  ///< index of `made_by` among its rank's actions
};

/// Returns the messages from rank `from` to rank `to`, in the order of the actions of `from`. Both ranks compute this
/// list, so the n-th recv matches the n-th send.
std::vector<Message> messages_between(const PipelineSchedule& schedule, int from, int to);

/// A header has kHeaderNumbers numbers that describe a tensor. The first kBeforeSizes of them are its dtype, whether it
/// requires a gradient, and its number of dims; then its sizes follow.
constexpr size_t kHeaderNumbers = 16, kBeforeSizes = 3;

/// Sizes and dtype of a tensor that one stage passes to the next, and whether it requires a gradient.
struct Form {
  std::vector<int64_t> sizes;
  c10::ScalarType dtype = c10::kFloat;
  bool requires_grad = false;

  bool operator==(const Form&) const = default;
};

/// Forms of the inputs of the stages' forwards. The key is the stage, the micro-batch and the slice.
using Forms = std::map<std::tuple<int, int, int>, Form>;

/// Sends and receives this rank's messages of one run of a schedule. Only one thread may use it.
class Mailbox {
 public:
  /// The Mailbox keeps references to all arguments. If `learns` is true, `forms` is filled during the run, and a header
  /// is sent before each message of a forward. Otherwise `forms` is complete, and no headers are sent.
  Mailbox(const ProcessGroup& group, Communicator& ranks, const PipelineSchedule& schedule, Forms& forms, bool learns);

  /// Starts to send `made`, the result of `action`, to the rank of the stage that takes it, if there is one. The
  /// Mailbox keeps the tensor until that rank has received it. Throws UsageError if the tensor does not have the form
  /// that the receiver expects.
  void send(const PipelineAction& action, const at::Tensor& made);
  /// Waits for the tensor that `action` takes from another stage, and returns it. If the forward's tensor required no
  /// gradient, there is no gradient to receive, and the result is an undefined tensor.
  at::Tensor receive(const PipelineAction& action);
  /// Returns true if the received input of the action's forward requires a gradient.
  bool needs_gradient(const PipelineAction& action) const { return form_of(action).requires_grad; }
  /// Waits until all tensors that this rank sent have arrived.
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
    at::Tensor next = {};  // tensor into which `receiving` receives the next message
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
