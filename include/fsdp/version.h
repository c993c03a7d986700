#pragma once
/// \file
/// The release of these headers, as macros for the preprocessor. `CMakeLists.txt` reads the numbers from here.

/// Grows when programs have to be changed.
#define FSDP_VERSION_MAJOR 0
/// Grows with features. While the major version is 0, programs may have to be changed then too.
#define FSDP_VERSION_MINOR 1
/// Grows with corrections.
#define FSDP_VERSION_PATCH 0
/// "MAJOR.MINOR.PATCH", which checkpoints name too.
#define FSDP_VERSION "0.1.0"
