#include "pipeline/messages.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>

#include "comm/core/check.h"

namespace fsdp::pipeline {
namespace {

using Kind = PipelineAction::Kind;

// Returns the action of the next or the previous stage that takes the result of `action`, or nothing if there is none.
std::optional<PipelineAction> taker_of(const PipelineSchedule& schedule, const PipelineAction& action) {
  const int stage = action.stage + (action.kind == Kind::kForward ? 1 : -1);
  if (stage < 0 || stage == schedule.stages()) return std::nullopt;
  return PipelineAction{action.kind, stage, action.micro_batch, action.slice};
}

// If `taken_by` is a forward, returns its stage. Otherwise returns the next stage, whose backward makes the gradient
// that `taken_by` takes.
int stage_of_form(const PipelineAction& taken_by) { return taken_by.stage + (taken_by.kind == Kind::kForward ? 0 : 1); }

Tag tag_of(const PipelineAction& made_by) { return {str_cat("pipeline ", made_by.name()), {}}; }

std::string text_of(const Form& form) {
  return str_cat(form.dtype, " of sizes ", at::IntArrayRef(form.sizes),
                 form.requires_grad ? "" : " (requires no gradient)");
}

// Returns the header of a tensor of this form.
at::Tensor header_of(const Form& form, const auto& where) {
  if (form.sizes.size() > kHeaderNumbers - kBeforeSizes)
    require(false, where(), "a tensor of ", form.sizes.size(), " dims, expected at most ",
            kHeaderNumbers - kBeforeSizes, ". Flatten some of its dims");
  std::vector<int64_t> numbers = {static_cast<int64_t>(form.dtype), form.requires_grad, std::ssize(form.sizes)};
  numbers.insert(numbers.end(), form.sizes.begin(), form.sizes.end());
  numbers.resize(kHeaderNumbers);
  return at::tensor(numbers, at::kLong);
}

}  // namespace

std::vector<Message> messages_between(const PipelineSchedule& schedule, int from, int to) {
  std::vector<Message> messages;
  for (size_t place = 0; const auto& action : schedule.actions[static_cast<size_t>(from)]) {
    const size_t made_at = place++;
    const auto taker = taker_of(schedule, action);
    if (!taker || schedule.rank_of(taker->stage) != to) continue;
    messages.push_back({action, *taker, made_at});
  }
  return messages;
}

Mailbox::Mailbox(const ProcessGroup& group, Communicator& ranks, const PipelineSchedule& schedule, Forms& forms,
                 bool learns)
    : group_(group), ranks_(ranks), schedule_(schedule), forms_(forms), learns_(learns) {
  for (int rank = 0; rank < schedule.ranks; ++rank)
    if (rank != ranks.rank()) peers_[rank].incoming = messages_between(schedule, rank, ranks.rank());
}

const Form& Mailbox::form_of(const PipelineAction& taken_by) const {
  return forms_.at({stage_of_form(taken_by), taken_by.micro_batch, taken_by.slice});
}

void Mailbox::send(const PipelineAction& action, const at::Tensor& made) {
  const auto taker = taker_of(schedule_, action);
  if (!taker) return;
  const int to = schedule_.rank_of(taker->stage);
  const auto& takers = schedule_.actions[static_cast<size_t>(to)];
  const auto taken_at = static_cast<size_t>(std::ranges::find(takers, *taker) - takers.begin());
  const auto send_to = [&](at::Tensor tensor) {
    auto work = ranks_.send(tensor, to, tag_of(action));
    peers_[to].sent.push_back({taken_at, std::move(tensor), std::move(work)});
  };
  const bool is_forward = action.kind == Kind::kForward;
  if (is_forward) {
    const Form form{made.sizes().vec(), made.scalar_type(), made.requires_grad()};
    const auto where = [&] { return str_cat(group_.where("Pipeline"), "stage ", action.stage, " gave "); };
    auto& known = forms_[{taker->stage, taker->micro_batch, taker->slice}];
    if (!learns_ && known != form)
      require(false, where(), text_of(form), " for micro-batch ", action.micro_batch, ", but gave ", text_of(known),
              " in an earlier run with inputs of the same sizes. A stage's output must have the same sizes, dtype and "
              "requires_grad for inputs of the same sizes");
    known = form;
    if (learns_ && to != ranks_.rank()) send_to(header_of(form, where).to(group_.device()));
  } else if (!form_of(*taker).requires_grad) {
    return;
  }
  auto tensor = made.detach().contiguous();
  if (to == ranks_.rank())
    received_early_.emplace_back(*taker, std::move(tensor));
  else
    send_to(std::move(tensor));
}

at::Tensor Mailbox::receive(const PipelineAction& action) {
  const auto take_early = [&]() -> std::optional<at::Tensor> {
    const auto found = std::ranges::find(received_early_, action, &std::pair<PipelineAction, at::Tensor>::first);
    if (found == received_early_.end()) return std::nullopt;
    auto tensor = std::move(found->second);
    received_early_.erase(found);
    return tensor;
  };
  // A forward takes the output of the previous stage, and a backward takes the gradient from the next stage.
  const int from = schedule_.rank_of(action.stage + (action.kind == Kind::kForward ? -1 : 1));
  const bool is_own = from == ranks_.rank();
  while (true) {
    if (auto tensor = take_early()) return *tensor;
    if (is_own) return {};  // no gradient was computed, because the forward's tensor required none
    auto& peer = peers_[from];
    if (!peer.receiving) begin_to_receive(from, peer);
    const auto& message = peer.incoming.at(peer.received++);
    auto tensor = std::exchange(peer.next, at::Tensor());
    if (const auto work = std::exchange(peer.receiving, nullptr)) work->wait();
    received_early_.emplace_back(message.taken_by, std::move(tensor));
    // Tensors that the peer had taken before it made this message have arrived, so these waits return at once.
    for (; !peer.sent.empty() && peer.sent.front().taken_at < message.made_at; peer.sent.pop_front())
      peer.sent.front().work->wait();
    // The next message is received while this rank computes, which is possible only if its size is known.
    if (!learns_) begin_to_receive(from, peer);
  }
}

void Mailbox::begin_to_receive(int rank, Peer& peer) {
  if (peer.received == peer.incoming.size()) return;
  const auto& [made_by, taken_by, made_at] = peer.incoming[peer.received];
  const bool is_forward = made_by.kind == Kind::kForward;
  if (learns_ && is_forward)
    forms_[{taken_by.stage, taken_by.micro_batch, taken_by.slice}] = receive_header(rank, made_by);
  const auto& form = form_of(taken_by);
  if (!is_forward && !form.requires_grad) return;
  peer.next = at::empty(form.sizes, at::TensorOptions(form.dtype).device(group_.device()));
  peer.receiving = ranks_.recv(peer.next, rank, tag_of(made_by));
}

void Mailbox::finish() {
  for (auto& [rank, peer] : peers_)
    for (; !peer.sent.empty(); peer.sent.pop_front()) peer.sent.front().work->wait();
}

Form Mailbox::receive_header(int rank, const PipelineAction& action) {
  const auto header =
      at::empty({static_cast<int64_t>(kHeaderNumbers)}, at::TensorOptions(at::kLong).device(group_.device()));
  ranks_.recv(header, rank, tag_of(action))->wait();
  const auto on_host = header.cpu();
  const std::span numbers(on_host.const_data_ptr<int64_t>(), kHeaderNumbers);
  const auto sizes = numbers.subspan(kBeforeSizes, static_cast<size_t>(numbers[2]));
  return {{sizes.begin(), sizes.end()}, static_cast<c10::ScalarType>(numbers[0]), numbers[1] != 0};
}

}  // namespace fsdp::pipeline
