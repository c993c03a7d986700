#pragma once
/// \file
/// Whether this rank reads the rows of a group, which other ranks write where memory is shared.

#include <fsdp/communicator.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace fsdp::runtime {

/// Note [Whose turn it is]. Where ranks share memory, whole parameters are the rows that their owners write. A scope
/// that opens says that this rank reads, then meets the other ranks, so that all earlier writes are there. The first
/// write to rows after it waits for peers that still read. Elsewhere there are no buffers, and nothing happens.
///
/// A rank reads while a scope or a backward is open, and then as long as a graph is left that may run backward. Such a
/// graph holds at least one of these:
/// - a node that the runtime hooked when autograd recorded it (it reads a view or a frozen parameter). Its hook owns a
///   claim until it runs without its graph being kept;
/// - an edge to the accumulator of a parameter. All of them are the accumulator's references; those of nodes that ran
///   without their graph being kept are noted and do not count. The accumulator has a hook that owns a claim, which
///   tells that the last graph was dropped; where graphs that ran are held yet, nothing tells that the last other one
///   was, so references are counted again while this rank waits through the same process group;
/// - a node of a custom Function that reads only what has neither. It cannot be found, so the operators inside it are.
/// This rank's own write ends its reading whatever graphs are left, and the next scope replaces it by a newer one; so
/// does a backward after a write that every rank makes, which peers may have yet to make.
///
/// Thread safety: all of it, because any thread may drop a graph. Nothing here waits for other ranks; `leave` takes the
/// communicator's lock.
class Reading : public std::enable_shared_from_this<Reading> {
 public:
  /// One of what keeps the rank reading.
  class Claim {
   public:
    Claim() = default;
    Claim(std::shared_ptr<Reading> reading, std::atomic<int64_t>& count)
        : reading_(std::move(reading)), count_(&count) {
      ++*count_;
    }
    Claim(Claim&& other) noexcept : reading_(std::move(other.reading_)), count_(other.count_) {}
    Claim& operator=(Claim&&) = delete;
    ~Claim() { drop(); }
    void drop();

   private:
    std::shared_ptr<Reading> reading_;
    std::atomic<int64_t>* count_ = nullptr;
  };
  using NodePointer = decltype(torch::autograd::get_current_node());

  void add(SharedBuffer& buffer) { buffers_.push_back(&buffer); }
  /// The buffers go.
  void close();
  const std::vector<SharedBuffer*>& buffers() const { return buffers_; }
  bool is_shared() const { return !buffers_.empty(); }

  /// A scope or a backward opens: this rank reads what it saw in `epoch`.
  void begin(uint64_t epoch);
  /// No scope or backward is open any more. `is_hidden`: custom Functions may have recorded nodes that are not found.
  void leave(bool is_hidden);
  /// This rank writes, or forgets its iteration. Returns whether it read.
  bool end();
  /// Whether it reads for a scope or a backward.
  bool is_open();

  /// For a node's hook; empty where no memory is shared.
  Claim claim_of_node() { return is_shared() ? Claim(shared_from_this(), nodes_) : Claim(); }
  /// Edges that lead to it count from now on.
  void watch(const NodePointer& accumulator);
  /// The node, with this many edges to the group's accumulators, runs and gives up what it saved: from now on these
  /// edges do not count.
  void note_consumed(torch::autograd::Node& node, int64_t edges);

 private:
  template <class T>
  static c10::weak_intrusive_ptr<T> weak(const c10::intrusive_ptr<T>& node) {
    return c10::weak_intrusive_ptr<T>(node);
  }
  template <class T>
  static std::weak_ptr<T> weak(const std::shared_ptr<T>& node) {
    return node;
  }
  using WeakNode = decltype(weak(std::declval<NodePointer>()));
  class ConsumedEdges;

  void forget_gone(std::vector<WeakNode>& gone);
  bool has_edges_left() const;
  bool count_again();
  void end_if_unused();
  void end_reading();

  std::mutex mutex_;
  std::vector<SharedBuffer*> buffers_;
  std::atomic<bool> reads_{false};
  bool is_open_ = false;     // a scope or a backward
  bool edges_left_ = false;  // when they were counted last, of nodes that were not consumed
  bool counts_again_ = false, found_none_ = false;
  bool is_hidden_ = false;
  uint64_t epoch_ = 0;
  std::atomic<int64_t> nodes_{0}, accumulators_{0};  // claims
  std::atomic<int64_t> consumed_edges_{0};           // of nodes that ran and are not gone
  std::vector<WeakNode> accumulators_seen_;
};

}  // namespace fsdp::runtime
