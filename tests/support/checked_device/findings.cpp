#include "support/checked_device/findings.h"

#include <c10/util/StringUtil.h>

#include <mutex>
#include <set>
#include <utility>

namespace fsdp::test::checked {
namespace {

// The object is never destroyed: see device_mutex().
struct Findings {
  std::mutex mutex;  // locked after all other mutexes
  std::vector<Violation> violations;
  std::set<std::string> known;
  std::vector<std::string> host_waits;
};

Findings& findings() {
  static auto* instance = new Findings;
  return *instance;
}

thread_local std::vector<std::string> t_labels;
thread_local const char* t_step = nullptr;

// The array is indexed by Fault.
constexpr const char* kNames[] = {"unordered", "early free", "reuse across streams", "wrong device",
                                  "different orders"};

}  // namespace

Label::Label(std::string text) { t_labels.push_back(std::move(text)); }
Label::~Label() { t_labels.pop_back(); }

std::string place_of(const std::string& operation, const c10::Stream& stream) {
  std::string text = c10::str(operation, " on stream ", stream.id(), " of ", stream.device());
  if (!t_labels.empty()) text += c10::str(", in '", t_labels.back(), "'");
  if (t_step != nullptr) text += c10::str(", after '", t_step, "'");
  return text;
}

void note_step(const char* step) { t_step = step; }

void report(Fault fault, const std::string& first, const std::string& then, const std::string& advice) {
  const std::string text = c10::str(kNames[static_cast<size_t>(fault)], ": ", first, "; then ", then, ". ", advice);
  std::lock_guard lock(findings().mutex);
  if (findings().known.insert(text).second) findings().violations.push_back({fault, text});
}

void count_host_wait(const std::string& operation, const c10::Stream& stream) {
  const std::string text = place_of(operation, stream);
  std::lock_guard lock(findings().mutex);
  findings().host_waits.push_back(text);
}

std::vector<Violation> take_violations() {
  std::lock_guard lock(findings().mutex);
  findings().known.clear();
  return std::exchange(findings().violations, {});
}

std::vector<std::string> take_host_waits() {
  std::lock_guard lock(findings().mutex);
  return std::exchange(findings().host_waits, {});
}

}  // namespace fsdp::test::checked
