#pragma once
/// \file
/// One queue of operations: a thread that runs them in the order in which they were queued.

#include <fsdp/communicator.h>

#include "comm/c10d/mail.h"
#include "comm/core/fingerprint.h"
#include "comm/core/mutex.h"
#include "comm/core/ranks.h"
#include "comm/failure/roll_call.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>

namespace fsdp {

/// Runs collectives, or the messages of one direction between two ranks, in a thread of its own.
///
/// Every wait ends, by the mail's timeout or by the roll call. After a failure all operations that are queued or come
/// later fail with the same error. Only one thread at a time may call `submit`.
class Lane : public RollCall::Queue {
 public:
  /// Makes a lane. `name` appears in errors. When the pointer is destroyed, the operation in progress ends within
  /// seconds, or the thread is left behind.
  static std::shared_ptr<Lane> start(std::shared_ptr<Mail> mail, std::shared_ptr<RollCall> roll_call, std::string name,
                                     Ranks ranks);

  /// Queues an operation. `move_data` runs in the lane's thread, between begin() and finish() of the mail.
  [[nodiscard]] std::shared_ptr<Work> submit(const Fingerprint& fingerprint, std::function<void()> move_data);

  std::string status() const override;
  int waiting_for() const override { return mail_->waiting_for(); }
  void interrupt() override { mail_->interrupt(); }

 private:
  class Ticket;

  Lane(std::shared_ptr<Mail> mail, std::shared_ptr<RollCall> roll_call, std::string name, Ranks ranks)
      : mail_(std::move(mail)), roll_call_(std::move(roll_call)), name_(std::move(name)), ranks_(std::move(ranks)) {}
  void run();
  void stop();
  void execute(Ticket& ticket);
  void attempt(Ticket& ticket);
  std::exception_ptr failure_of(const Fingerprint& fingerprint, const std::string& what) const;

  const std::shared_ptr<Mail> mail_;
  const std::shared_ptr<RollCall> roll_call_;
  const std::string name_;
  const Ranks ranks_;
  std::thread thread_;
  std::promise<void> ended_;

  mutable Mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::shared_ptr<Ticket>> queued_ FSDP_GUARDED_BY(mutex_);
  bool stopping_ FSDP_GUARDED_BY(mutex_) = false;
  // The operation in progress or the last one.
  std::optional<Fingerprint> operation_ FSDP_GUARDED_BY(mutex_);
  bool busy_ FSDP_GUARDED_BY(mutex_) = false;
  std::chrono::steady_clock::time_point since_ FSDP_GUARDED_BY(mutex_);

  // Only the lane's thread uses these.
  std::exception_ptr failure_;
  uint64_t sequence_ = 0;
};

}  // namespace fsdp
