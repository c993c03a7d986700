#include "comm/group/roster.h"

#include <algorithm>
#include <utility>

namespace fsdp {
namespace {

template <class Key>
struct Numbered {
  std::vector<int> numbers;  // of each key: equal keys have one number, counted from 0 in the order of the first ones
  std::vector<Key> keys;     // the different ones, by number
};

template <class Key>
Numbered<Key> number(const std::vector<Key>& keys) {
  Numbered<Key> result;
  std::map<Key, int> known;
  for (const auto& key : keys) {
    const auto [place, is_new] = known.try_emplace(key, static_cast<int>(known.size()));
    if (is_new) result.keys.push_back(key);
    result.numbers.push_back(place->second);
  }
  return result;
}

template <class Field>
auto column(std::span<const Profile> profiles, Field Profile::*field) {
  std::vector<Field> values;
  for (const auto& profile : profiles) values.push_back(profile.*field);
  return values;
}

std::vector<int> pick(const PackedNumbers& numbers, std::span<const int> ranks) {
  const auto all = numbers.unpack();
  std::vector<int> picked;
  for (const int rank : ranks) picked.push_back(all[static_cast<size_t>(rank)]);
  return picked;
}

}  // namespace

PackedNumbers::PackedNumbers(std::span<const int> numbers) {
  for (size_t begin = 0, end = 0; begin < numbers.size(); begin = end) {
    while (end < numbers.size() && numbers[end] == numbers[begin]) ++end;
    const int step = numbers[begin] - (begin == 0 ? 0 : numbers[begin - 1]), length = static_cast<int>(end - begin);
    const bool goes_on = !stretches_.empty() && stretches_.back().step == step && stretches_.back().length == length;
    if (!goes_on) stretches_.push_back({length, step, 0});
    ++stretches_.back().times;
  }
}

std::vector<int> PackedNumbers::unpack() const {
  std::vector<int> numbers;
  int number = 0;
  for (const auto& [length, step, times] : stretches_)
    for (int run = 0; run < times; ++run) numbers.insert(numbers.end(), static_cast<size_t>(length), number += step);
  return numbers;
}

Roster roster_of(std::span<const Profile> profiles) {
  std::vector<std::pair<std::string, std::string>> places;
  for (const auto& profile : profiles) places.emplace_back(profile.domain, profile.host);
  const auto claims = number(column(profiles, &Profile::claims));
  const auto obstacles = number(column(profiles, &Profile::obstacle));
  Roster roster{.claims = {},
                .hosts = PackedNumbers(number(places).numbers),
                .domains = PackedNumbers(number(column(profiles, &Profile::domain)).numbers),
                .users = PackedNumbers(column(profiles, &Profile::user)),
                .obstacles = PackedNumbers(obstacles.numbers),
                .obstacle_texts = obstacles.keys};
  for (size_t i = 0; i < claims.keys.size(); ++i) {
    const auto first = std::ranges::find(claims.numbers, static_cast<int>(i)) - claims.numbers.begin();
    roster.claims[static_cast<int>(first)] = claims.keys[i];
  }
  return roster;
}

Roster roster_of(const Roster& roster, std::span<const int> ranks) {
  return {.claims = {},
          .hosts = PackedNumbers(number(pick(roster.hosts, ranks)).numbers),
          .domains = PackedNumbers(number(pick(roster.domains, ranks)).numbers),
          .users = PackedNumbers(pick(roster.users, ranks)),
          .obstacles = PackedNumbers(pick(roster.obstacles, ranks)),
          .obstacle_texts = roster.obstacle_texts};
}

std::vector<Contacts> contacts_of(std::span<const Profile> profiles, std::span<const int> hosts) {
  std::vector<Contacts> contacts(static_cast<size_t>(*std::ranges::max_element(hosts)) + 1);
  for (size_t rank = 0; rank < profiles.size(); ++rank)
    contacts[static_cast<size_t>(hosts[rank])][static_cast<int>(rank)] = {profiles[rank].process,
                                                                          profiles[rank].listener};
  for (auto& host : contacts)
    if (host.size() == 1) host.clear();
  return contacts;
}

}  // namespace fsdp
