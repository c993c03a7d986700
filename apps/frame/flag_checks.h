#pragma once
/// \file
/// Checks of what flags are given, for CLI::Option::check. Numbers have to be finite.

#include <limits>

namespace CLI {
class Validator;
}

namespace frame {

CLI::Validator positive_number();
CLI::Validator number_from_0(double most = std::numeric_limits<double>::max());
/// Whole numbers, up to more than any use.
CLI::Validator count();
CLI::Validator count_or_none();
CLI::Validator seed();
/// Of a rank.
CLI::Validator threads();
/// A path that is not empty, as that of a variable of the shell that is not set would be.
CLI::Validator path();

}  // namespace frame
