// WEFT_MULTIVERSION: compile a function once for each instruction set that pays, chosen when the extension is loaded.
// WEFT_INLINE: a part of such a function, compiled for what it is in.
#pragma once

#define WEFT_INLINE [[gnu::always_inline]] inline

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define WEFT_MULTIVERSION __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define WEFT_MULTIVERSION
#endif
