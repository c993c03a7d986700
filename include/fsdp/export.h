#pragma once
/// \file
/// What a shared library of fsdp exports: everything that a public header declares inside `namespace fsdp FSDP_EXPORT`.
/// All else is compiled with hidden visibility, so that two libraries with a copy of fsdp do not mix.

#if defined(__GNUC__)
/// Gives the declarations of one namespace block default visibility, type information of exceptions included.
#define FSDP_EXPORT __attribute__((visibility("default")))
#else
#define FSDP_EXPORT
#endif
