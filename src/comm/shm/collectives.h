#pragma once
/// \file
/// The collectives, or the messages, of one order: started by the caller, advanced whenever a thread of the rank comes
/// by, finished when one waits.

#include <fsdp/communicator.h>

#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "comm/core/fingerprint.h"
#include "comm/shm/peers.h"
#include "comm/shm/rounds.h"
#include "comm/shm/steps.h"

namespace fsdp::shm {

/// First in, first out. One that was started goes on in later calls of this rank, and at most two rounds of it and its
/// successors wait for slower peers. Only if something follows a collective a thread waits for it, so that what follows
/// begins when it is done, not when a thread of the rank next comes by. Thread safety: all of it.
///
/// Note [Waiting threads]. What is done here is done under the peers' lock and without waiting. A thread that has
/// nothing left to do but to wait sleeps without the lock, and looks at everything again when it wakes: others may have
/// advanced the queue, finished what it waits for, failed, or started over.
class Collectives : public Progress, public std::enable_shared_from_this<Collectives> {
 public:
  /// `name`: of the order, on the rank's timeline.
  Collectives(std::shared_ptr<Peers> peers, Rounds rounds, std::string name)
      : peers_(std::move(peers)), rounds_(std::move(rounds)), name_(std::move(name)) {
    peers_->add(*this);
  }
  ~Collectives() override;

  /// Waits for nothing.
  std::shared_ptr<Work> start(Fingerprint fingerprint, Steps steps);
  /// Finishes everything that was started.
  void finish_all();

  void progress() override;
  bool is_under_way() const override { return !queue_.empty(); }
  void drop() override;
  void begin_anew() override {
    failure_ = nullptr;
    rounds_.begin_anew();
  }

 private:
  class Started;
  class Handle;
  bool post_next();
  bool read_next();
  void go_on();
  void advance_until(const std::function<bool()>& is_over);
  void wait_for(Started& work);
  void then(const std::shared_ptr<Started>& work, Work::Next next);
  void abandon(Started& work);
  /// Runs `act`; a failure ends this and every later collective.
  void guarded(const std::function<void()>& act);

  const std::shared_ptr<Peers> peers_;
  Rounds rounds_;
  const std::string name_;
  std::deque<std::shared_ptr<Started>> queue_;
  std::exception_ptr failure_;
  std::deque<std::future<void>> followed_;  // threads that wait for collectives which something follows
};

}  // namespace fsdp::shm
