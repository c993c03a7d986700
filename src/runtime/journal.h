#pragma once
/// \file
/// What a rank tells others that have no data, so that they take part in what it does (see follow.h).

#include <fsdp/communicator.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::runtime {

/// All that a rank does in forward and backward which others take part in, or count alike. In braces: what comes with
/// it.
enum class Act : uint8_t {
  kBroadcastBuffers,     ///< under the module of a group {its number}
  kName,                 ///< a group {its number}, for the act that follows
  kOpenScope,            ///< on the named groups {whether gradients are recorded}
  kCloseScope,           ///< that was opened last {whether autograd recorded an operator}
  kGather,               ///< of a group {its number}, is started
  kFinishGather,         ///< was waited for {the group's number}
  kFree,                 ///< whole parameters {the group's number}
  kSpread,               ///< the same, with a second shard
  kEnterBackward,        ///< of a group {its number, the graph task}
  kReduce,               ///< {a group's number, the bucket}
  kReduceWithinReplica,  ///< the same, over the shard axis alone
  kFinishReductions,     ///< were waited for {the group's number, whether in the last backward}
  kLeaveBackward,        ///< {the graph task}
  kEnd,
  kFail,  ///< by an exception
};

struct Event {
  Act act = Act::kEnd;
  int64_t first = 0, second = 0;
};

/// Messages to the ranks that follow this one, in the order of what it does. Thread safety: under the rank's lock.
class Journal {
 public:
  /// `communicator` outlives it; `subject` is what the messages are about.
  Journal(Communicator& communicator, std::vector<int> followers, std::string subject)
      : communicator_(communicator), followers_(std::move(followers)), subject_(std::move(subject)) {}

  /// Waits for nobody, and does not throw: `finish` does.
  void tell(Event event) noexcept;
  /// Waits, by `wait`, until everybody has heard everything. Throws what telling threw.
  void finish(const std::function<void(Work&)>& wait);

 private:
  Communicator& communicator_;
  const std::vector<int> followers_;
  const std::string subject_;
  std::vector<std::shared_ptr<Work>> in_flight_;
  std::exception_ptr error_;
};

/// The next message of `leader`.
Event hear(Communicator& communicator, int leader, const std::string& subject, const std::function<void(Work&)>& wait);

}  // namespace fsdp::runtime
