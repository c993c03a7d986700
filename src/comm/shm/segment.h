#pragma once
/// \file
/// Anonymous memory that processes share: memfd_create(2), sized and sealed before anybody maps it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "comm/descriptor.h"

namespace fsdp::shm {

/// What keeps this machine from sharing memory, in one sentence.
class Obstacle : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A segment in this process' address space, unmapped at the end.
class Mapping {
 public:
  Mapping(const Descriptor& segment, size_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_;
  size_t bytes_;
};

/// A segment of zeros that nobody can resize. Its memory is there when this returns, so that using it never ends in
/// SIGBUS. Throws Obstacle.
Descriptor make_segment(size_t bytes);

/// The bytes that may still be taken: what the machine has available, and what is left of the control group's limit.
/// `meminfo`: /proc/meminfo; `limit`, `used`: the control group's memory.max and memory.current.
std::optional<uint64_t> available_bytes(const std::string& meminfo, const std::string& limit, const std::string& used);

}  // namespace fsdp::shm
