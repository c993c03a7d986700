#pragma once
/// \file
/// A locale as programs choose it for their users, made without a package.

#include <cstdlib>
#include <locale>
#include <string>

namespace fsdp::test {

/// Writes 1234.5 as "1 2 3 4,5": groups of one digit, so that any number of two digits shows whose rules it follows.
class Separators : public std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return ' '; }
  std::string do_grouping() const override { return "\1"; }
};

/// From now on std::ostream and what is written with it follow those rules.
inline void take_locale_with_separators() { std::locale::global(std::locale(std::locale::classic(), new Separators)); }

/// The variable with which a suite runs under them.
inline void take_locale_of_environment() {
  if (std::getenv("FSDP_TEST_SEPARATORS") != nullptr) take_locale_with_separators();
}

}  // namespace fsdp::test
