// Selection among variants of code that are compiled for different vector instruction sets.
#pragma once

namespace weft {

enum class InstructionSet { kPlain, kAvx2, kAvx512 };

// Returns the processor's best set, or a lower one named by WEFT_INSTRUCTION_SET (plain, avx2, avx512), so that one
// machine can test the code for other processors. Determined once. Throws std::invalid_argument for an unknown name.
InstructionSet instruction_set();

// Returns the set's name, as in WEFT_INSTRUCTION_SET.
const char *instruction_set_name();

// Whether the chosen set is kAvx512 and the processor has its products of bytes (VNNI).
bool has_vnni();

// Whether the processor has bfloat16 instructions for tiles (AMX) and for AVX-512 vectors, and the system lets this
// process use tiles. Determined once; the first call asks the system for the permission.
bool has_amx();

// Whether tiles also multiply bytes.
bool has_amx_int8();

// Whether the processor multiplies pairs of bfloat16 in AVX-512 vectors (VDPBF16PS) as fast as single float32 numbers.
// AMD's do, since Zen 4; on Intel's it is slower than float32, so they count as without. The vendor decides, not a
// measurement, so that all runs on a machine give the same bits.
bool has_fast_pairs();

}  // namespace weft

// With GCC on x86-64, WEFT_MULTIVERSION compiles a function for several instruction sets, and the dynamic loader
// chooses one. WEFT_INLINE marks a part of such a function, which is compiled for the instruction set of its caller.
#define WEFT_INLINE [[gnu::always_inline]] inline

// ThreadSanitizer is not ready yet when the loader chooses.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define WEFT_MULTIVERSION __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define WEFT_MULTIVERSION
#endif
