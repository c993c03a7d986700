#include "optim/random_bits.h"

#include <algorithm>
#include <array>

namespace fsdp::optim {
namespace {

constexpr size_t kLanes = 64;      // number of counters that one call processes, so that loops can be vectorised
constexpr size_t kOfACounter = 8;  // number of 16-bit numbers that one counter gives

using Lanes = std::array<uint32_t, kLanes>;
using Words = std::array<Lanes, 4>;  // the four words of each counter, the lowest first

// Runs one of the ten rounds for all counters. The constants here and in `philox` are those of Salmon et al.
void run_round(Words& words, uint32_t key0, uint32_t key1) {
  for (size_t i = 0; i < kLanes; ++i) {
    const uint64_t product0 = uint64_t{0xD2511F53} * words[0][i], product1 = uint64_t{0xCD9E8D57} * words[2][i];
    words[0][i] = static_cast<uint32_t>(product1 >> 32) ^ words[1][i] ^ key0;
    words[1][i] = static_cast<uint32_t>(product1);
    words[2][i] = static_cast<uint32_t>(product0 >> 32) ^ words[3][i] ^ key1;
    words[3][i] = static_cast<uint32_t>(product0);
  }
}

// Returns the random words of the counters `first`, `first` + 1, ...
Words philox(uint64_t seed, uint64_t stream, uint64_t first) {
  Words words;
  for (size_t i = 0; i < kLanes; ++i) {
    words[0][i] = static_cast<uint32_t>(first + i);
    words[1][i] = static_cast<uint32_t>((first + i) >> 32);
    words[2][i] = static_cast<uint32_t>(stream);
    words[3][i] = static_cast<uint32_t>(stream >> 32);
  }
  auto key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    run_round(words, key0, key1);
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return words;
}

}  // namespace

void fill_random(std::span<uint16_t> bits, uint64_t seed, uint64_t stream, int64_t first) {
  auto counter = static_cast<uint64_t>(first) / kOfACounter;
  size_t skipped = static_cast<uint64_t>(first) % kOfACounter;
  for (size_t done = 0; done < bits.size(); counter += kLanes) {
    const Words words = philox(seed, stream, counter);
    std::array<uint16_t, kLanes * kOfACounter> all;
    for (size_t i = 0; i < kLanes; ++i)
      for (size_t word = 0; word < words.size(); ++word) {
        all[i * kOfACounter + 2 * word] = static_cast<uint16_t>(words[word][i]);
        all[i * kOfACounter + 2 * word + 1] = static_cast<uint16_t>(words[word][i] >> 16);
      }
    const size_t count = std::min(bits.size() - done, all.size() - skipped);
    std::copy_n(all.data() + skipped, count, bits.data() + done);
    done += count;
    skipped = 0;
  }
}

}  // namespace fsdp::optim
