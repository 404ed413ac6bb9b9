#pragma once

// Debian 12 and Ubuntu 22.04 have Catch2 2, newer systems 3.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

// Sanitizers bring their own allocator and memory: what measures either leaves itself out.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SAFETENSORFS_SANITIZED 1
#endif
