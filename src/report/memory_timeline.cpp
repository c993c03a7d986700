#include <fsdp/memory_timeline.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "api/group_view.h"
#include "comm/core/check.h"
#include "comm/core/mutex.h"
#include "comm/posix/file.h"
#include "report/byte_classes.h"
#include "runtime/param_group.h"

namespace fsdp {
namespace report {

using Clock = std::chrono::steady_clock;

class Recorder {
 public:
  struct Change {
    int64_t nanoseconds = 0, part = 0;
    memory::ByteClass cls = {};
    int64_t now = 0;
  };

  void changed(int64_t part, memory::ByteClass cls, int64_t now) {
    add({std::chrono::nanoseconds(Clock::now() - start_).count(), part, cls, now});
  }
  void add(const Change& change) {
    const MutexLock lock(mutex_);
    changes_.push_back(change);
  }
  std::vector<Change> changes() const {
    const MutexLock lock(mutex_);
    return changes_;
  }

 private:
  const Clock::time_point start_ = Clock::now();
  mutable Mutex mutex_;
  std::vector<Change> changes_ FSDP_GUARDED_BY(mutex_);
};

}  // namespace report

struct MemoryTimeline::State {
  std::shared_ptr<memory::ByteAccount> account;
  int rank = 0, world_size = 1;
  std::unordered_map<int64_t, std::string> names = {};  // names of groups, by GroupId
  std::shared_ptr<report::Recorder> recorder = std::make_shared<report::Recorder>();
};

MemoryTimeline::MemoryTimeline(const Group& model) {
  auto& rank = param_groups(model).front()->rank_state();
  state_ = std::make_unique<State>(State{rank.account, model.rank(), model.world_size()});
  const MutexLock lock(rank.mutex);
  for (size_t cls = 0; cls < memory::kByteClasses; ++cls) {
    const auto byte_class = static_cast<memory::ByteClass>(cls);
    for (const auto* group : rank.groups()) {
      const auto number = static_cast<int64_t>(group->id());
      state_->names[number] = group->name();
      if (const auto now = group->account()->current(byte_class); now != 0)
        state_->recorder->add({0, number, byte_class, now});
    }
  }
  const bool is_the_only_one =
      state_->account->observe([recorder = state_->recorder](int64_t part, memory::ByteClass cls, int64_t now) {
        recorder->changed(part, cls, now);
      });
  require(is_the_only_one, param_groups(model).front()->where("memory_timeline"),
          "another memory timeline is already recording this rank. Destroy that timeline first");
}

MemoryTimeline::~MemoryTimeline() { state_->account->observe(nullptr); }

std::vector<MemoryEvent> MemoryTimeline::events() const {
  std::vector<MemoryEvent> events;
  for (const auto& change : state_->recorder->changes()) {
    const auto named = state_->names.find(change.part);
    events.push_back({change.nanoseconds, report::kClassNames[static_cast<size_t>(change.cls)],
                      named == state_->names.end() ? std::string() : named->second, change.now});
  }
  return events;
}

void MemoryTimeline::write(const std::string& path) const {
  nlohmann::ordered_json json{{"rank", state_->rank}, {"world_size", state_->world_size}};
  json["events"] = nlohmann::ordered_json::array();
  for (const auto& event : events())
    json["events"].push_back(
        {{"ns", event.nanoseconds}, {"class", event.byte_class}, {"group", event.group}, {"bytes", event.bytes}});
  try {
    remove_leftovers(path);
    write_text(path, json.dump(1) + '\n');
  } catch (const FileError& error) {
    throw Error(str_cat("[fsdp rank ", state_->rank, "/", state_->world_size, "] memory_timeline: ", error.what()));
  }
}

MemoryTimeline memory_timeline(const Group& model) { return MemoryTimeline(model); }

}  // namespace fsdp
