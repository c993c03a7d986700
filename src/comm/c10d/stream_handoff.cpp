#include "comm/c10d/stream_handoff.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <mutex>
#include <optional>
#include <utility>

#include "comm/core/current_stream.h"

namespace fsdp {

struct StreamHandoff::State {
  State(c10::Device on, Lane::MoveData with_tensors)
      : device(on),
        caller(t_caller && t_caller->device() == on ? *t_caller : current_stream(on)),
        submitted(on.type()),
        finished(on.type()),
        move_data(std::move(with_tensors)) {
    submitted.record(current_stream(on));
  }
  ~State() {
    try {
      let_go();
    } catch (const std::exception&) {
      // A device that failed orders nothing any more.
    }
  }

  Issued run() {
    stream = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
    const c10::StreamGuard guard(*stream);
    submitted.block(*stream);
    try {
      auto issued = move_data();
      finished.record(*stream);
      return issued;
    } catch (...) {
      finished.record(*stream);  // of what was issued all the same
      throw;
    }
  }

  // What `next` gives the current stream comes after this collective.
  void follow(const Work::Next& next) {
    const c10::StreamGuard guard(*stream);
    const auto* before = std::exchange(t_caller, &caller);
    next();
    t_caller = before;
  }

  void let_go() {
    std::call_once(once, [&] {
      finished.block(caller);
      move_data = nullptr;
    });
  }

  // Of the thread that runs what follows a collective: whose tensors that is about.
  static thread_local const c10::Stream* t_caller;

  const c10::Device device;
  const c10::Stream caller;
  std::optional<c10::Stream> stream;  // of the collective, once it was issued
  c10::Event submitted, finished;
  Lane::MoveData move_data;
  std::once_flag once;
};

thread_local const c10::Stream* StreamHandoff::State::t_caller = nullptr;

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
    void then(Next next) override {
      inner_->then([state = state_, next = std::move(next)] { state->follow(next); });
    }

   private:
    const std::shared_ptr<Work> inner_;
    const std::shared_ptr<State> state_;
  };
  return std::make_shared<OrderedWork>(std::move(work), state_);
}

}  // namespace fsdp
