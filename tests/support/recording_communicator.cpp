#include "support/recording_communicator.h"

#include "support/decorator.h"

namespace fsdp {
namespace {

class RecordingCommunicator : public Decorator {
 public:
  RecordingCommunicator(std::shared_ptr<Communicator> inner, std::shared_ptr<OperationLog> log, std::string lane)
      : Decorator(std::move(inner), std::move(lane)), log_(std::move(log)) {}

 private:
  void before(Operation operation, uint64_t bytes, Tag& tag) override {
    log_->append({std::string(name_of(operation)), tag.subject, bytes, lane()});
  }
  std::shared_ptr<Communicator> decorate(std::shared_ptr<Communicator> duplicate, const std::string& name) override {
    return make_recording_communicator(std::move(duplicate), log_, name);
  }

  const std::shared_ptr<OperationLog> log_;
};

}  // namespace

void OperationLog::append(Entry entry) {
  std::lock_guard lock(mutex_);
  entries_.push_back(std::move(entry));
}

std::vector<OperationLog::Entry> OperationLog::entries() const {
  std::lock_guard lock(mutex_);
  return entries_;
}

std::vector<OperationLog::Entry> OperationLog::entries(const std::string& operation) const {
  auto entries = this->entries();
  std::erase_if(entries, [&](const Entry& entry) { return entry.operation != operation; });
  return entries;
}

uint64_t OperationLog::bytes(const std::string& operation) const {
  uint64_t bytes = 0;
  for (const auto& entry : entries(operation)) bytes += entry.bytes;
  return bytes;
}

void OperationLog::clear() {
  std::lock_guard lock(mutex_);
  entries_.clear();
}

std::shared_ptr<Communicator> make_recording_communicator(std::shared_ptr<Communicator> inner,
                                                          std::shared_ptr<OperationLog> log, std::string lane) {
  return std::make_shared<RecordingCommunicator>(std::move(inner), std::move(log), std::move(lane));
}

}  // namespace fsdp
