#include "comm/c10d/stream_handoff.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <mutex>
#include <utility>

#include "comm/core/current_stream.h"

namespace fsdp {

struct StreamHandoff::State {
  State(c10::Device on, Lane::MoveData with_tensors)
      : device(on),
        before(t_before && t_before->device == on ? t_before : nullptr),
        caller(before ? before->caller : current_stream(on)),
        submitted(on.type()),
        finished(on.type()),
        move_data(std::move(with_tensors)) {
    if (!before) submitted.record(caller);
  }
  ~State() {
    try {
      let_go();
    } catch (const std::exception&) {
      // A device that failed orders nothing any more.
    }
  }

  Issued run() {
    const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
    const c10::StreamGuard guard(stream);
    (before ? before->submitted : submitted).block(stream);
    if (before) before->finished.block(stream);
    try {
      auto issued = move_data();
      finished.record(stream);
      return issued;
    } catch (...) {
      finished.record(stream);  // of what was issued all the same
      throw;
    }
  }

  void let_go() {
    std::call_once(once, [&] {
      finished.block(caller);
      move_data = nullptr;
    });
  }

  // Of the thread that submits what follows a collective, which comes after that one instead of after what the caller's
  // stream has been given since.
  static thread_local std::shared_ptr<State> t_before;

  const c10::Device device;
  const std::shared_ptr<State> before;
  const c10::Stream caller;
  c10::Event submitted, finished;
  Lane::MoveData move_data;
  std::once_flag once;
};

thread_local std::shared_ptr<StreamHandoff::State> StreamHandoff::State::t_before;

StreamHandoff::StreamHandoff(c10::Device device, Lane::MoveData move_data) {
  if (device.is_cpu())
    on_cpu_ = std::move(move_data);
  else
    state_ = std::make_shared<State>(device, std::move(move_data));
}

Lane::MoveData StreamHandoff::in_lane() const {
  if (!state_) return on_cpu_;
  return [state = state_] { return state->run(); };
}

std::shared_ptr<Work> StreamHandoff::for_caller(std::shared_ptr<Work> work) const {
  if (!state_) return work;
  class OrderedWork : public Work {
   public:
    OrderedWork(std::shared_ptr<Work> inner, std::shared_ptr<State> state)
        : inner_(std::move(inner)), state_(std::move(state)) {}
    void wait() override {
      inner_->wait();
      state_->finished.block(current_stream(state_->device));
      state_->let_go();
    }
    bool lets_others_go_on() const override { return inner_->lets_others_go_on(); }
    std::span<const uint8_t> votes() const override { return inner_->votes(); }
    void then(Next next) override {
      inner_->then([state = state_, next = std::move(next)](std::span<const uint8_t> votes) {
        State::t_before = state;
        next(votes);
        State::t_before = nullptr;
      });
    }

   private:
    const std::shared_ptr<Work> inner_;
    const std::shared_ptr<State> state_;
  };
  return std::make_shared<OrderedWork>(std::move(work), state_);
}

}  // namespace fsdp
